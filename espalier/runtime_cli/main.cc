#include "espalier/cli/program_main.h"
#include "espalier/runtime_cli/verbs.h"

int main(int argc, char** argv) {
  using namespace espalier::cli;
  const RuntimeVerbs runtime{.run = run,
                             .verify = verify,
                             .profile = profile,
                             .calibrate = calibrate,
                             .learn = learn,
                             .learned = learned,
                             .ordered = ordered};
  return program_main(argc, argv, &runtime);
}
