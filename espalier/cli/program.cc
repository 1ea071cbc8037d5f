#include "espalier/cli/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/base/spelling.h"
#include "espalier/base/version.h"
#include "espalier/cli/verbs.h"
#include "espalier/cli/workers.h"
#include "espalier/runtime/runtime.h"

namespace espalier::cli {
namespace {

std::string nearest(const std::string& word, const std::vector<std::string>& candidates) {
  const std::vector<std::string_view> views(candidates.begin(), candidates.end());
  const auto found = nearest_word(word, views);
  return found && edit_distance(word, *found) <= std::max<std::size_t>(2, word.size() / 2)
             ? fmt::format("; did you mean '{}'?", *found)
             : "";
}

std::vector<std::string> verbs_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(verb->get_name());
  }
  return names;
}

std::vector<std::string> options_of(const CLI::App& verb) {
  std::vector<std::string> names;
  for (const CLI::Option* option : verb.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

// CLI11 names the argument; we add what it may have meant.
std::string explain(const CLI::App& app, const std::vector<std::string>& arguments,
                    const CLI::ParseError& error) {
  const CLI::App* verb = nullptr;
  for (const CLI::App* chosen : app.get_subcommands()) verb = chosen;
  const std::string name = verb ? verb->get_name() : "";
  if (dynamic_cast<const CLI::ExtrasError*>(&error) && verb) {
    const std::vector<std::string> known = options_of(*verb);
    for (const std::string& argument : arguments) {
      const std::string flag = argument.substr(0, argument.find('='));
      if (flag.rfind("--", 0) == 0 && std::find(known.begin(), known.end(), flag) == known.end()) {
        return fmt::format("{}: there is no option '{}'{} (espalier {} --help)", name, flag,
                           nearest(flag, known), name);
      }
    }
  }
  std::string what = error.what();
  std::replace(what.begin(), what.end(), '\n', ' ');
  while (!what.empty() && (what.back() == ' ' || what.back() == '.')) what.pop_back();
  return fmt::format("{}{} (espalier {}--help)", name.empty() ? "" : name + ": ", what,
                     name.empty() ? "" : name + " ");
}

// Options that are not listed leave no empty line.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    std::string help = CLI::Formatter::make_help(app, std::move(name), mode);
    for (std::size_t at = 0; (at = help.find("\n\n\n", at)) != std::string::npos;) help.erase(at, 1);
    return help;
  }
};

int call(const std::vector<std::string>& arguments, Console& console, const Machine& machine,
         const RuntimeVerbs* runtime) {
  CLI::App app("Espalier plans and trains branching neural networks on several devices.", "espalier");
  app.set_version_flag("--version", "espalier " + std::string(kVersion));
  app.require_subcommand(0, 1);
  app.footer(
      "Start with:\n  espalier inspect model.pt2\n  espalier plan model.pt2\n\n"
      "No colours: --no-color, or NO_COLOR in the environment.\n"
      "Exit codes: 0 done, 1 verify found a difference or a run broke off, 2 wrong input, 3 no feasible "
      "answer, 4 out of memory, 70 our bug, 130 interrupted.");
  app.formatter(std::make_shared<HelpFormatter>());
  app.get_formatter()->column_width(34);
  std::function<int()> chosen;
  Program program{app, console, chosen, arguments, machine, runtime};
  for (auto* add :
       {add_inspect, add_profile, add_calibrate, add_plan, add_fit, add_planners, add_simulate, add_compare,
        add_run, add_launch, add_verify, add_diff, add_zoo, add_literal, add_orders, add_learn}) {
    add(program);
  }
  if (arguments.empty()) {
    console.out() << app.help();
    return kWrongInput;
  }
  const std::vector<std::string> verbs = verbs_of(app);
  if (arguments[0].rfind('-', 0) != 0 && std::find(verbs.begin(), verbs.end(), arguments[0]) == verbs.end()) {
    throw InputError(
        fmt::format("there is no verb '{}'{} (espalier --help)", arguments[0], nearest(arguments[0], verbs)));
  }
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    console.out() << app.help();  // of the verb, if there is one
    return kDone;
  } catch (const CLI::CallForVersion& version) {
    console.out() << version.what() << '\n';
    return kDone;
  } catch (const CLI::ParseError& error) {
    throw InputError(explain(app, arguments, error));
  }
  return chosen();
}

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

int run_program(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err,
                const Terminal& terminal, const Machine& machine, const RuntimeVerbs* runtime) {
  Console console(out, err, terminal);
  try {
    const int code = call(arguments, console, machine, runtime);
    out.flush();
    return code;
  } catch (const InputError& error) {
    console.finish();
    out.flush();
    const std::string line = one_line(error.what());
    if (!is_worker() || !tell_launcher(line)) err << "espalier: " << line << std::endl;
    return kWrongInput;
  } catch (const std::bad_alloc&) {
    console.finish();
    out.flush();
    err << "espalier: there is not enough memory" << std::endl;
    return kOutOfMemory;
  } catch (const ResourceError& error) {
    console.finish();
    out.flush();
    const std::string line = one_line(error.what());
    if (!is_worker() || !tell_launcher(line)) err << "espalier: " << line << std::endl;
    return kOutOfMemory;
  } catch (const WorkerError& error) {
    console.finish();
    out.flush();
    const char* rank = std::getenv("RANK");
    const std::string line = fmt::format("worker {} stops: {}", rank ? rank : "0", one_line(error.what()));
    tell_launcher(line);
    err << "espalier: " << line << std::endl;
    return kRunFailed;
  } catch (const std::exception& error) {
    console.finish();
    out.flush();
    err << "espalier: this is a bug in espalier, please report it with the command and its files: "
        << one_line(error.what()) << std::endl;
    return kOurFault;
  }
}

int run_program_again(const Program& program, const std::vector<std::string>& arguments) {
  Console& console = program.console;
  return run_program(arguments, console.out(), console.err(), console.terminal(), program.machine,
                     program.runtime);
}

}  // namespace espalier::cli
