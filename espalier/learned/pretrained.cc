#include "espalier/learned/pretrained.h"

#include "espalier/base/embedded.h"

ESP_EMBEDDED(espalier_gdp_policy, ESPALIER_GDP_POLICY);
ESP_EMBEDDED(espalier_giph_policy, ESPALIER_GIPH_POLICY);

namespace espalier::placement {

Policy pretrained_policy(const std::string& device) {
  return Policy::parse(ESP_BYTES_OF(espalier_gdp_policy), "the policy that comes along", device);
}

RelocationPolicy pretrained_relocation() {
  return RelocationPolicy::parse(ESP_BYTES_OF(espalier_giph_policy),
                                 "the relocation policy that comes along");
}

}  // namespace espalier::placement
