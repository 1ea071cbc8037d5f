#include "espalier/cli/program_main.h"

#include <malloc.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "espalier/app/machine.h"
#include "espalier/cli/calibrate.h"
#include "espalier/cli/program.h"

namespace espalier::cli {
namespace {

Terminal look_at_terminal() {
  Terminal terminal;
  terminal.out = isatty(STDOUT_FILENO) != 0;
  terminal.err = isatty(STDERR_FILENO) != 0;
  const char* term = std::getenv("TERM");
  const char* no_colour = std::getenv("NO_COLOR");
  terminal.colours = term && std::string_view(term) != "dumb" && !(no_colour && *no_colour);
  winsize size{};
  for (const int file : {STDOUT_FILENO, STDERR_FILENO}) {
    if (isatty(file) != 0 && ioctl(file, TIOCGWINSZ, &size) == 0 && size.ws_col >= 40) {
      terminal.width = size.ws_col;
      break;
    }
  }
  return terminal;
}

}  // namespace

int program_main(int argc, char** argv, const RuntimeVerbs* runtime) {
  // A closed pipe (`espalier … | head`) ends the program quietly, as for any other filter.
  signal(SIGPIPE, SIG_DFL);
  // A file that grows beyond the user's limit is a write error with a message, as a full disk is.
  signal(SIGXFSZ, SIG_IGN);
  // For a build without mimalloc. Models are read into millions of small pieces. Those that are freed are
  // joined at once: gathered first, they would be gone through again and again while a document is freed (a
  // sixth of reading 47 MB).
  mallopt(M_MXFAST, 0);
  std::ios::sync_with_stdio(false);
  const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  Machine machine = this_machine();
  machine.calibration_file = calibration_file_of_user();
  return run_program(arguments, std::cout, std::cerr, look_at_terminal(), machine, runtime);
}

}  // namespace espalier::cli
