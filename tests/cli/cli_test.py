#!/usr/bin/env python3
"""The command line program as a user meets it: exit codes, one-line errors, files, JSON.

Standard library only. Skipped (77) where the program is not built.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import unittest

from command import BINARY, FIXTURES, Command

MODEL = str(FIXTURES / "three_branch.pt2")
CLUSTER = "2xV100-16GB"


class Cli(Command):
    def plan(self, *arguments, name="plan.json"):
        self.espalier("plan", MODEL, "--cluster", CLUSTER, "-o", name, *arguments)
        return name

    # Wrong input

    def test_a_misspelt_verb_is_answered_with_the_nearest(self):
        self.refused("simulat", "plan.json", says=["no verb 'simulat'", "did you mean 'simulate'?"])

    def test_a_misspelt_option_is_answered_with_the_nearest(self):
        self.refused("plan", MODEL, "--cluser", "local", says=["no option '--cluser'", "did you mean '--cluster'?"])

    def test_a_misspelt_planner_is_answered_with_the_nearest(self):
        self.refused("plan", MODEL, "--planner", "branch", says="did you mean 'branches'?")

    def test_a_missing_model_is_named(self):
        self.refused("inspect", "gone.pt2", says="gone.pt2")

    def test_a_missing_argument_is_named(self):
        self.refused("plan", says="model")

    def test_a_wrong_cluster_says_which_part_is_wrong(self):
        self.refused("plan", MODEL, "--cluster", "2xV900", says="V900")
        self.refused("plan", MODEL, "--cluster", "local:many", says="local:2")
        self.refused("plan", MODEL, "--cluster", "gone.json", says="no such file")

    def test_a_wrong_micro_batch_says_what_would_be_right(self):
        self.refused("plan", MODEL, "--batch", "16", "--micro-batch", "3", says="does not divide the batch of 16")
        fixed = str(FIXTURES / "two_tower_fixed.pt2")
        self.refused("plan", fixed, "--batch", "16", "--micro-batch", "2", says="exported for")

    def test_a_wrong_number_is_quoted(self):
        self.refused("run", "plan.json", "--steps", "0", says=["--steps", "'0' is not a number above 0"])
        self.refused("verify", "plan.json", "--workers", "9999", says="'9999' is not a number from 1 to 4096")

    def test_a_model_is_not_a_plan(self):
        self.refused("simulate", MODEL, says="an archive, not a plan")

    def test_a_wrong_schedule_or_optimizer_names_the_choices(self):
        self.refused("plan", MODEL, "--schedule", "zigzag", says=["1f1b", "gpipe"])
        self.refused("plan", MODEL, "--optimizer", "adm", says=["adam", "sgd"])

    def test_a_wrong_pin_is_refused(self):
        self.refused("plan", MODEL, "--cluster", CLUSTER, "--pin", "patches.*=tpu:0", says="tpu:0")

    def test_bytes_that_are_no_model_are_refused(self):
        (self.folder / "noise.pt2").write_bytes(bytes(range(256)) * 8)
        self.refused("inspect", "noise.pt2", says="noise.pt2")

    def test_a_damaged_plan_names_the_place(self):
        name = self.plan()
        file = self.folder / name
        file.write_text(file.read_text().replace('"batch": 16', '"batch": -1', 1))
        self.refused("simulate", name, says=[name, "batch"])

    def test_a_folder_that_does_not_exist_is_refused(self):
        self.refused("plan", MODEL, "--cluster", CLUSTER, "-o", "gone/plan.json", says="gone")

    # No feasible answer

    def test_what_does_not_fit_exits_3_and_says_why(self):
        (self.folder / "tiny.txt").write_text(
            "kind tiny 1KiB f32=1e12 f16=1e12 mem=1GB launch=5us sms=1\n"
            "group network 1GB latency=10us\n"
            "device a tiny in network\ndevice b tiny in network\n")
        done = self.espalier("plan", MODEL, "--cluster", "tiny.txt", code=3)
        self.assertIn("no plan", done.stdout)
        self.assertRegex(done.stdout, r"[KM]iB")
        self.assertFalse((self.folder / "plan.json").exists())
        done = self.espalier("plan", MODEL, "--cluster", "tiny.txt", "--json", code=3)
        self.assertEqual(json.loads(done.stdout)["status"], "infeasible")

    # What works

    def test_a_plan_that_computes_again_says_which_stages_do(self):
        devices = "device a small in host\ndevice b small in host\n"
        self.write("tiny.txt", "kind small 80KiB f32=1e9 mem=1GB\ngroup host 1GB\n" + devices)
        job = ["--batch", 64, "--micro-batch", 4, "--planner", "checkpointed"]
        said = self.espalier("plan", MODEL, *job, "--cluster", "tiny.txt").stdout
        self.assertIn("computed again", said)
        stages = json.loads((self.folder / "plan.json").read_text())["stages"]
        self.assertTrue(any(stage.get("recompute") for stage in stages))
        self.assertEqual(self.espalier("simulate", "plan.json").returncode, 0)
        self.assertNotIn("computed again", self.espalier("plan", MODEL, *job, "--cluster", "3xcpu").stdout)

    def test_help_of_every_verb_is_short_and_has_an_example(self):
        listing = self.espalier("--help").stdout
        verbs = re.findall(r"^  ([a-z]+)  ", listing.split("Subcommands:")[1], re.MULTILINE)
        self.assertIn("plan", verbs)
        for verb in verbs:
            text = self.espalier(verb, "--help").stdout
            self.assertIn(f"Example:\n  espalier {verb}", text)
            self.assertLess(len(text.splitlines()), 50, verb)

    def test_the_model_alone_is_enough(self):
        self.espalier("inspect", MODEL)
        self.espalier("plan", MODEL)
        self.assertTrue((self.folder / "plan.json").exists())
        self.espalier("simulate", "plan.json")
        self.espalier("compare", MODEL)

    def test_json_of_every_verb_parses(self):
        name = self.plan()
        other = self.plan("--planner", "single", name="single.json")
        for arguments in (["inspect", MODEL], ["plan", MODEL], ["planners"], ["simulate", name],
                          ["compare", MODEL, "--cluster", CLUSTER], ["diff", name, other]):
            done = self.espalier(*arguments, "--json")
            self.assertIsInstance(json.loads(done.stdout), dict, arguments)
            self.assertEqual(done.stderr, "", arguments)

    def test_the_same_command_writes_the_same_bytes(self):
        first = (self.folder / self.plan(name="a.json")).read_bytes()
        second = (self.folder / self.plan(name="b.json")).read_bytes()
        self.assertEqual(first, second)

    def test_simulate_agrees_with_plan_to_the_nanosecond(self):
        planned = json.loads(self.espalier("plan", MODEL, "--cluster", CLUSTER, "--json").stdout)
        simulated = json.loads(self.espalier("simulate", "plan.json", "--json").stdout)
        self.assertEqual(planned["iteration_ns"], simulated["iteration_ns"])
        self.assertEqual(planned["memory"], simulated["memory"])
        self.assertEqual(planned["bounds"], simulated["bounds"])

    def test_pick_writes_another_choice_with_less_memory_or_depth(self):
        cluster = ["--cluster", "4xV100-16GB", "--batch", "64", "--micro-batch", "4,8,16"]
        best = json.loads(self.espalier("plan", MODEL, *cluster, "--json", "-o", "best.json").stdout)
        self.assertTrue(best["choices"])
        text = self.espalier("plan", MODEL, *cluster, "-o", "best.json").stdout
        peak = lambda planned: max(device["peak_bytes"] for device in planned["memory"])
        depth = int(re.search(r"depth (\d+)", text)[1])
        for number, choice in enumerate(best["choices"], 1):
            self.assertIn(f"--pick {number}: ", text)
            picked = json.loads(self.espalier("plan", MODEL, *cluster, "--pick", str(number), "--json", "-o", "picked.json").stdout)
            self.assertEqual(picked["iteration_ns"], choice["iteration_ns"])
            self.assertEqual(peak(picked), choice["peak_bytes"])
            self.assertGreater(picked["iteration_ns"], best["iteration_ns"])
            self.assertTrue(peak(picked) < peak(best) or choice["depth"] < depth)
        beyond = str(len(best["choices"]) + 1)
        self.refused("plan", MODEL, *cluster, "--pick", beyond, "-o", "none.json", says=f"--pick {beyond}")

    def test_no_plan_beats_its_bounds(self):
        rows = json.loads(self.espalier("compare", MODEL, "--cluster", CLUSTER, "--json").stdout)["rows"]
        plans = [row for row in rows if row["status"] in ("feasible", "optimal") and not row["data_edges_only"]]
        self.assertGreater(len(plans), 3)
        for row in plans:
            self.assertEqual({bound["scope"] for bound in row["bounds"]}, {"these stages", "any plan with one of the micro-batches offered"}, row["planner"])
            for bound in row["bounds"]:
                self.assertGreater(bound["time_ns"], 0, row["planner"])
                self.assertLessEqual(bound["time_ns"], row["iteration_ns"], row["planner"])

    def test_a_plan_may_be_moved_with_its_model(self):
        (self.folder / "there").mkdir()
        (self.folder / "there" / "model.pt2").write_bytes(pathlib.Path(MODEL).read_bytes())
        self.espalier("plan", "there/model.pt2", "--cluster", CLUSTER, "-o", "there/plan.json")
        self.assertEqual(json.loads((self.folder / "there/plan.json").read_text())["model"], "model.pt2")
        (self.folder / "there").rename(self.folder / "moved")
        done = self.espalier("simulate", "moved/plan.json", "--json")
        self.assertEqual(len(json.loads(done.stdout)["bounds"]), 2)

    def test_without_its_model_a_plan_still_simulates(self):
        (self.folder / "model.pt2").write_bytes(pathlib.Path(MODEL).read_bytes())
        self.espalier("plan", "model.pt2", "--cluster", CLUSTER)
        (self.folder / "model.pt2").unlink()
        done = self.espalier("simulate", "plan.json")
        self.assertIn("needs the model", done.stderr)

    def test_pins_are_kept(self):
        planned = json.loads(self.espalier("plan", MODEL, "--cluster", CLUSTER, "--pin", "*=gpu:1", "--json").stdout)
        self.assertEqual({device for stage in planned["stages"] for device in stage["devices"]}, {"gpu:1"})

    def test_traces_and_pictures_are_written(self):
        name = self.plan()
        self.espalier("simulate", name, "-o", "t.json", "--svg", "t.svg", "--chrome", "c.json", "--gantt")
        self.assertEqual(json.loads((self.folder / "t.json").read_text())["format"], "espalier.trace/1")
        self.assertIn("traceEvents", json.loads((self.folder / "c.json").read_text()))
        self.assertTrue((self.folder / "t.svg").read_text().startswith("<svg"))
        done = self.espalier("diff", name, "t.json", "--json")
        difference = json.loads(done.stdout)
        self.assertEqual(difference["a"]["iteration_ns"], difference["b"]["iteration_ns"])
        self.assertEqual(difference["only_in_a"] + difference["only_in_b"], [])

    def test_diff_of_a_plan_with_itself_finds_nothing(self):
        name = self.plan()
        self.assertTrue(json.loads(self.espalier("diff", name, name, "--json").stdout)["same"])
        other = self.plan("--planner", "single", name="single.json")
        self.assertIn("planner: auto in a, single in b", self.espalier("diff", name, other).stdout)

    def test_a_plan_of_a_changed_model_is_refused_where_the_model_matters(self):
        name = self.plan()
        file = self.folder / name
        text = file.read_text()
        file.write_text(text.replace("three_branch.pt2", "two_tower.pt2"))
        self.refused("diff", name, name, says="two_tower")

    def test_a_closed_pipe_ends_quietly(self):
        said = self.espalier("inspect", MODEL).stderr
        reader, writer = os.pipe()
        os.close(reader)  # nobody reads: the first byte that is written ends the program
        # Python ignores the signal, and so would its children: the program has to ask for it.
        done = subprocess.run([BINARY, "inspect", MODEL], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60,
                              cwd=self.folder, restore_signals=False)
        os.close(writer)
        self.assertEqual(done.returncode, -signal.SIGPIPE)
        self.assertTrue(said.startswith(done.stderr), done.stderr)  # its notes, where they come first; no complaint

    def test_no_colour_reaches_a_file(self):
        self.assertNotIn("\x1b", self.espalier("plan", MODEL, "--cluster", CLUSTER).stdout)

    def test_pictures_in_the_documents_are_what_the_program_draws(self):
        update = FIXTURES.parent.parent / "docs" / "images" / "update"
        done = subprocess.run([update, "--check"], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))

    def test_launch_refuses_verbs_that_are_not_for_several_processes(self):
        self.refused("launch", "-n", "2", "--", "plan", MODEL, says=["plan", "run"])


if __name__ == "__main__":
    if not BINARY:
        sys.exit(77)
    unittest.main()
