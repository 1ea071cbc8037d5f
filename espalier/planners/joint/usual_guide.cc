#include "espalier/planners/joint/guide.h"

// The assembler takes the file's bytes as they are; CMakeLists.txt says where it is and that this file
// depends on it.
__asm__(
    ".section .rodata\n"
    ".balign 8\n"
    "espalier_guide_begin:\n"
    ".incbin \"" ESPALIER_GUIDE
    "\"\n"
    "espalier_guide_end:\n"
    ".previous\n");
extern "C" {
extern const char espalier_guide_begin[];  // NOLINT(readability-identifier-naming): the assembler's
extern const char espalier_guide_end[];    // NOLINT(readability-identifier-naming)
}

namespace espalier::joint {

const MoveGuide& usual_guide() {
  static const MoveGuide kGuide = MoveGuide::parse(
      {espalier_guide_begin, static_cast<std::size_t>(espalier_guide_end - espalier_guide_begin)},
      "the guide that comes along");
  return kGuide;
}

}  // namespace espalier::joint
