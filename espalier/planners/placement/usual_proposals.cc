#include "espalier/planners/placement/proposal_guide.h"

// The assembler takes the file's bytes as they are; CMakeLists.txt says where it is and that this file
// depends on it.
__asm__(
    ".section .rodata\n"
    ".balign 8\n"
    "espalier_proposals_begin:\n"
    ".incbin \"" ESPALIER_PROPOSALS
    "\"\n"
    "espalier_proposals_end:\n"
    ".previous\n");
extern "C" {
extern const char espalier_proposals_begin[];  // NOLINT(readability-identifier-naming): the assembler's
extern const char espalier_proposals_end[];    // NOLINT(readability-identifier-naming)
}

namespace espalier::placement {

const ProposalGuide& usual_proposals() {
  static const ProposalGuide kGuide = ProposalGuide::parse(
      {espalier_proposals_begin, static_cast<std::size_t>(espalier_proposals_end - espalier_proposals_begin)},
      "the guide that comes along");
  return kGuide;
}

}  // namespace espalier::placement
