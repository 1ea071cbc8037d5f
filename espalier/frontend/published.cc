#include "espalier/frontend/published.h"

namespace espalier {

std::optional<PublishedKind> published_kind(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return std::nullopt;
  const auto says = [&](std::string_view word) { return text.find(word) != std::string_view::npos; };
  if (text[first] != '{')
    return says("forward_compute_time=") ? std::optional(PublishedKind::kPipedream) : std::nullopt;
  if (says("\"maxFPGAs\"")) return PublishedKind::kMsr;
  if (says("\"mbsInBatch\"")) return PublishedKind::kPiper;
  return std::nullopt;
}

}  // namespace espalier
