#include "espalier/cli/program_main.h"

int main(int argc, char** argv) {
  return espalier::cli::program_main(argc, argv, nullptr);
}
