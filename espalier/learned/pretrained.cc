#include "espalier/learned/pretrained.h"

#include <string_view>

// The assembler takes the files' bytes as they are; CMakeLists.txt says where they are and that this file
// depends on them.
__asm__(
    ".section .rodata\n"
    ".balign 8\n"
    "espalier_gdp_policy_begin:\n"
    ".incbin \"" ESPALIER_GDP_POLICY
    "\"\n"
    "espalier_gdp_policy_end:\n"
    ".balign 8\n"
    "espalier_giph_policy_begin:\n"
    ".incbin \"" ESPALIER_GIPH_POLICY
    "\"\n"
    "espalier_giph_policy_end:\n"
    ".previous\n");
extern "C" {
extern const char espalier_gdp_policy_begin[];   // NOLINT(readability-identifier-naming): the assembler's
extern const char espalier_gdp_policy_end[];     // NOLINT(readability-identifier-naming)
extern const char espalier_giph_policy_begin[];  // NOLINT(readability-identifier-naming)
extern const char espalier_giph_policy_end[];    // NOLINT(readability-identifier-naming)
}

namespace espalier::placement {

Policy pretrained_policy(const std::string& device) {
  const std::string_view bytes(espalier_gdp_policy_begin,
                               espalier_gdp_policy_end - espalier_gdp_policy_begin);
  return Policy::parse(bytes, "the policy that comes along", device);
}

RelocationPolicy pretrained_relocation() {
  const std::string_view bytes(espalier_giph_policy_begin,
                               espalier_giph_policy_end - espalier_giph_policy_begin);
  return RelocationPolicy::parse(bytes, "the relocation policy that comes along");
}

}  // namespace espalier::placement
