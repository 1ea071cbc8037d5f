#!/usr/bin/env python3
# Sanitized builds leave this out: other projects link what users build.
"""Another project links Espalier: from an installed tree, and as a subdirectory.

The build folder is installed into a scratch folder; the headers there need nothing but the standard library, no
file leads back to the build, and examples/library, built against them, trains a fixture in its own process: the loss
falls and the file that it writes is read back. In a build without libtorch the same library plans.
Skipped (77) where the build folder is not told.
"""

import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = os.environ.get("ESPALIER_BUILD_DIR")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]', re.MULTILINE)
PLANS = """
#include <espalier/app/machine.h>
#include <espalier/app/planning.h>
#include <iostream>
#ifdef ESPALIER_TORCH
#error "this library has no runtime"
#endif
int main(int, char** argv) {
  const espalier::PlanningJob job = espalier::prepare_job({.model = argv[1], .cluster = "2xV100-16GB"});
  std::cout << espalier::plan_model(job, {}).judged->plan.stages.size() << " stages\\n";
}
"""
# The process belongs to whoever calls: its cores, signals, environment and folder stay as they were.
HOST = """
#include <espalier/app/machine.h>
#include <espalier/app/planning.h>
#include <espalier/runtime/runtime.h>
#include <malloc.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <sstream>
std::string process() {
  std::ostringstream text;
  cpu_set_t cores;
  sched_getaffinity(0, sizeof cores, &cores);
  for (int core = 0; core < CPU_SETSIZE; ++core) text << (CPU_ISSET(core, &cores) ? "1" : "0");
  for (int number = 1; number < SIGRTMIN; ++number) {
    struct sigaction action {};
    if (sigaction(number, nullptr, &action) == 0) text << ' ' << reinterpret_cast<std::size_t>(action.sa_handler);
  }
  sigset_t blocked;
  sigprocmask(SIG_BLOCK, nullptr, &blocked);
  for (int number = 1; number < SIGRTMIN; ++number) text << sigismember(&blocked, number);
  for (char** entry = environ; *entry != nullptr; ++entry) text << ' ' << *entry;
  text << ' ' << std::filesystem::current_path();
  const std::size_t mapped = mallinfo2().hblks;  // a large block has a mapping of its own
  void* const block = std::malloc(64 << 20);
  text << " +" << mallinfo2().hblks - mapped;
  std::free(block);
  return text.str();
}
int main(int, char** argv) {
  const std::string before = process();
  const espalier::PlanningJob job =
      espalier::prepare_job({.model = argv[1], .cluster = "local:2", .machine = espalier::this_machine()});
  const espalier::Planned planned = espalier::plan_model(job, {.planner = "branches"});
  espalier::RunOptions run;
  run.steps = 2;
  const espalier::RunResult result = espalier::run_plan(espalier::plan_file(job, planned, "."), job.model, run);
  std::cout << result.steps.size() << " steps\\n";
  if (process() != before) std::cout << "changed from\\n" << before << "\\nto\\n" << process() << '\\n';
}
"""
# Settings of a project that adds Espalier must stay as they are; its own files are compiled by them.
PARENT = """
cmake_minimum_required(VERSION 3.25)
project(parent LANGUAGES CXX)
set(CMAKE_CXX_STANDARD 17)
set(before "${CMAKE_CXX_FLAGS}|${CMAKE_BUILD_TYPE}|${CMAKE_CXX_STANDARD}|${CMAKE_CXX_COMPILER_LAUNCHER}|${BUILD_TESTING}")
get_directory_property(options_before COMPILE_OPTIONS)
add_subdirectory(%s espalier)
set(after "${CMAKE_CXX_FLAGS}|${CMAKE_BUILD_TYPE}|${CMAKE_CXX_STANDARD}|${CMAKE_CXX_COMPILER_LAUNCHER}|${BUILD_TESTING}")
get_directory_property(options_after COMPILE_OPTIONS)
if(NOT before STREQUAL after OR NOT options_before STREQUAL options_after)
  message(FATAL_ERROR "Espalier changed '${before}' to '${after}', '${options_before}' to '${options_after}'")
endif()
if(TEST espalier_base_test OR TARGET espalier_base_test)
  message(FATAL_ERROR "Espalier's tests are in the way")
endif()
add_executable(train %s)
target_link_libraries(train PRIVATE espalier::espalier)
"""


def cached(name):
    text = (pathlib.Path(BUILD) / "CMakeCache.txt").read_text()
    found = re.search(rf"^{name}(?::\w+)?=(.*)$", text, re.MULTILINE)
    return found[1] if found else ""


def read_tensors(path):
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8:8 + length])
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"], content[8 + length:][slice(*entry["data_offsets"])])
            for name, entry in header.items()}


def write_tensors(path, tensors):
    header, content = {}, b""
    for name, (kind, shape, data) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(content), len(content) + len(data)]}
        content += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + content)


class Library(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory(prefix="espalier-library-")
        cls.folder = pathlib.Path(cls.scratch.name)
        cls.tree = cls.folder / "tree"
        cls.runtime = cached("ESPALIER_TORCH") == "ON"
        cls.call("cmake", "--install", BUILD, "--prefix", cls.tree)

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    @staticmethod
    def call(*command, code=0, cwd=None):
        environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
        done = subprocess.run([str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True)
        if done.returncode != code:
            raise AssertionError(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done

    def configure(self, source, name, *more, code=0):
        arguments = ["-G", "Ninja", f"-DCMAKE_CXX_COMPILER={cached('CMAKE_CXX_COMPILER')}"]
        if self.runtime:
            arguments.append(f"-DESPALIER_PYTHON={cached('ESPALIER_PYTHON')}")
        return self.call("cmake", "-S", source, "-B", self.folder / name, *arguments, *more, code=code)

    def installed(self, pattern):
        found = sorted(self.tree.rglob(pattern))
        self.assertTrue(found, f"nothing like {pattern} is installed")
        return found

    def test_installed_headers_reach_the_standard_library_and_each_other_only(self):
        names = {str(path.relative_to(self.tree / "include")) for path in self.installed("*.h")}
        self.assertLessEqual({"espalier/app/planning.h", "espalier/graph/text.h", "espalier/sim/simulate.h"}, names)
        self.assertEqual("espalier/runtime/runtime.h" in names, self.runtime)
        for name in names:
            for included in INCLUDE.findall((self.tree / "include" / name).read_text()):
                ours = included.startswith("espalier/")
                self.assertTrue(included in names if ours else "/" not in included, f"{name} includes {included}")

    def test_what_is_installed_is_found_where_it_stands(self):
        """No build or source folder in what CMake reads, nor in a program's run path: espalier-runtime's is torch's folder."""
        for path in self.installed("*.cmake"):
            for place in (str(ROOT), BUILD, str(self.tree)):
                self.assertNotIn(place, path.read_text(), f"{path} names {place}")
        folders = {}
        for program in sorted((self.tree / "bin").iterdir()):
            dynamic = self.call("readelf", "-d", program).stdout
            folders[program.name] = re.findall(r"(?:RPATH|RUNPATH)\)\s+Library \w+: \[(.*)\]", dynamic)
        self.assertEqual(folders.pop("espalier"), [])
        self.assertEqual(list(folders), ["espalier-runtime"] if self.runtime else [])
        for run_path in folders.values():
            self.assertEqual(len(run_path), 1)
            self.assertRegex(run_path[0], r"^[^:]*/torch/lib$")

    def test_a_program_of_five_cmake_lines_plans_trains_and_saves(self):
        if not self.runtime:
            return self.check_the_library_without_runtime()
        self.configure(ROOT / "examples/library", "train", f"-DCMAKE_PREFIX_PATH={self.tree}", "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Wpedantic -Werror")
        self.call("cmake", "--build", self.folder / "train")
        fixtures = ROOT / "tests/fixtures"
        inputs = {name.removeprefix("input."): (kind, [8 * shape[0], *shape[1:]], 8 * data)
                  for name, (kind, shape, data) in read_tensors(fixtures / "three_branch.expected.safetensors").items()
                  if name.startswith("input.")}
        self.assertTrue(inputs)
        write_tensors(self.folder / "data.safetensors", inputs)
        done = self.call(self.folder / "train/train", fixtures / "three_branch.pt2", "data.safetensors", "trained.safetensors",
                         cwd=self.folder)
        losses = [float(line.split()[1]) for line in done.stdout.splitlines()]
        self.assertEqual(len(losses), 20)
        self.assertLess(losses[-1], 0.5 * losses[0])
        trained = read_tensors(self.folder / "trained.safetensors")
        self.assertIn("head.weight", trained)
        # The program reads the file back and goes on where the library's user stopped.
        espalier = self.tree / "bin/espalier"
        plan = self.call(espalier, "plan", fixtures / "three_branch.pt2", "--cluster", "local:2", "--batch", "16", "-o", "plan.json",
                         cwd=self.folder)
        self.assertIn("wrote plan.json", plan.stdout)
        went_on = self.call(espalier, "run", "plan.json", "--load", "trained.safetensors", "--data", "data.safetensors", "--steps", "1",
                            "--json", cwd=self.folder)
        self.assertLess(json.loads(went_on.stdout)["steps"][0]["loss"], 0.6 * losses[0])

    def project(self, name, source):
        folder = self.folder / name
        folder.mkdir()
        (folder / "main.cc").write_text(source)
        (folder / "CMakeLists.txt").write_text(
            f"cmake_minimum_required(VERSION 3.25)\nproject({name} LANGUAGES CXX)\nfind_package(espalier REQUIRED)\n"
            f"add_executable({name} main.cc)\ntarget_link_libraries({name} PRIVATE espalier::espalier)\n")
        self.configure(folder, f"{name}-build", f"-DCMAKE_PREFIX_PATH={self.tree}")
        self.call("cmake", "--build", self.folder / f"{name}-build")
        return self.folder / f"{name}-build" / name

    def test_a_run_leaves_the_process_of_its_caller_as_it_was(self):
        if self.runtime:
            done = self.call(self.project("host", HOST), ROOT / "tests/fixtures/three_branch.pt2", cwd=self.folder)
            self.assertEqual(done.stdout, "2 steps\n")

    def check_the_library_without_runtime(self):
        refused = self.configure(ROOT / "examples/library", "train", f"-DCMAKE_PREFIX_PATH={self.tree}", code=1)
        self.assertIn("runtime", refused.stderr)
        done = self.call(self.project("plans", PLANS), ROOT / "tests/fixtures/three_branch.pt2")
        self.assertRegex(done.stdout, r"^[1-9]\d* stages\n$")

    def test_a_project_that_adds_espalier_keeps_its_own_settings(self):
        source = self.folder / "parent"
        source.mkdir()
        (source / "CMakeLists.txt").write_text(PARENT % (ROOT, ROOT / "examples/library/main.cc"))
        self.configure(source, "parent-build", f"-DESPALIER_TORCH={'ON' if self.runtime else 'OFF'}")
        rules = (self.folder / "parent-build/build.ninja").read_text()
        mine = rules[rules.index("CMakeFiles/train.dir/"):][:2000]
        self.assertNotIn("-Werror", mine)
        self.assertNotIn("-ffp-contract", mine)
        self.assertNotRegex(mine, r"nlohmann|site-packages/torch/include")


if __name__ == "__main__":
    if not BUILD:
        sys.exit(77)
    unittest.main()
