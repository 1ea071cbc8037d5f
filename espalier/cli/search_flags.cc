// How plan and compare search.

#include "espalier/base/host.h"
#include "espalier/cli/verbs.h"
#include "espalier/cli/workers.h"

namespace espalier::cli {

void SearchFlags::add(CLI::App* verb) {
  add(verb, std::to_string(usual.max_states / 1'000'000) + " million");
}

void SearchFlags::add(CLI::App* verb, const std::string& usual_text) {
  verb->add_option("--budget", asked, "most states to look at, dealt to the planners; default: " + usual_text)
      ->type_name("N");
  verb->add_option("-j,--jobs", jobs, "threads that plan; the result is the same; default: one per core")
      ->type_name("N")
      ->check(worker_count());
}

SearchOptions SearchFlags::options(Console& console) const {
  const std::size_t cores = static_cast<std::size_t>(this_host().usable);
  return {.threads = jobs > 0 ? jobs : cores,
          .progress = console.search_listener(),
          .cancelled = &watch_for_interrupts()};
}

}  // namespace espalier::cli
