#!/usr/bin/env python3
"""Learned placement as a user meets it: `learn`, and `plan --planner gdp`.

Standard library only. Skipped (77) where the program is not built. In a build without libtorch: one line says so.
"""

import json
import pathlib
import signal
import subprocess
import sys
import time
import unittest

from command import BINARY, FIXTURES, Command, environment

RUNTIME = BINARY and pathlib.Path(BINARY).with_name("espalier-runtime")
MODEL = [FIXTURES / "three_branch.pt2", "-c", "3xT4", "-b", "64"]
LITTLE = ["--graphs", "3", "--looks", "300", "--rounds", "2", "--updates", "4"]


class WithoutRuntime(Command):
    def test_one_line_says_what_lacks(self):
        if RUNTIME.exists():
            return
        self.refused("plan", *MODEL, "-p", "gdp", says="`plan` needs")
        self.refused("learn", "apply", *MODEL, says="`learn` needs")
        self.refused("orders", "--family", "nmt", "--placer", "placeto", says="`orders --placer placeto` needs")

    def test_its_options_are_for_it_alone(self):
        self.refused("plan", *MODEL, "-p", "heft", "--fine-tune", "3", says="--fine-tune: is for --planner gdp")
        self.refused("compare", *MODEL, "--policy", "x", says="--policy: is for --planner gdp, giph or --learned")
        self.refused("plan", *MODEL, "-p", "hdp", "--fine-tune", "3", says="--fine-tune: is for --planner gdp")
        self.refused("plan", *MODEL, "-p", "hdp", "--embedding", "p-gnn", says="--embedding: is for --planner placeto")
        self.refused("plan", *MODEL, "-p", "placeto", "--embedding", "rnn", says="rnn not in")
        self.refused("orders", "--family", "nmt", "--placer", "placet", says="did you mean 'placeto'")
        self.refused("learn", "fly", says="fly not in")
        self.refused("plan", *MODEL, "-p", "heft", "--learned", says="--learned: is for --planner auto")
        self.refused("plan", *MODEL, "--learned", "--policy", MODEL[0], says="is not a safetensors file")
        self.refused("plan", *MODEL, "-p", "local-search", "--learned", "--policy", MODEL[0], says="is not a safetensors file")
        self.refused("compare", *MODEL, "-p", "auto,local-search", "--learned", "--policy", "x", says="one file cannot guide auto and local-search")

    def test_the_guides_that_come_along_need_no_runtime(self):
        for planner, budget in (("auto", "200000"), ("local-search", "300")):
            plans = []
            for jobs in "12":
                done = self.espalier("plan", *MODEL, "-p", planner, "--learned", "--budget", budget, "--jobs", jobs, "-o", "plan.json", "--json")
                self.assertEqual(json.loads(done.stdout)["status"], "feasible")
                plans.append((self.folder / "plan.json").read_bytes())
            self.assertEqual(*plans)


class Learned(Command):
    def setUp(self):
        super().setUp()
        if not RUNTIME.exists():
            self.skipTest("a build without runtime")

    def planned(self, *arguments):
        return json.loads(self.espalier("plan", *MODEL, "-p", "gdp", "-o", "plan.json", "--json", *arguments).stdout)

    def test_the_policy_that_comes_along_answers_and_its_plan_trains(self):
        done = self.planned()
        self.assertEqual((done["status"], done["planner"]), ("feasible", "gdp"))
        verified = self.espalier("verify", "plan.json", "--steps", "3")
        self.assertIn("equal", verified.stdout)

    def test_the_same_bytes_again_and_fine_tuning_is_no_slower(self):
        first, plan = self.planned(), (self.folder / "plan.json").read_bytes()
        self.planned("--jobs", "2")
        self.assertEqual(plan, (self.folder / "plan.json").read_bytes())
        tuned = self.planned("--fine-tune", "15")
        self.assertLessEqual(tuned["estimate_ns"], first["estimate_ns"])
        searched = json.loads(self.espalier("plan", *MODEL, "-p", "gdp-search", "-o", "plan.json", "--json").stdout)
        self.assertEqual((searched["status"], searched["planner"]), ("feasible", "gdp-search"))

    def test_it_stands_beside_others(self):
        told = json.loads(self.espalier("learn", "apply", *MODEL, "--json").stdout)
        self.assertIn("heft", [row["placer"] for row in told["placers"]])
        compared = json.loads(self.espalier("compare", *MODEL, "-p", "gdp,heft", "--json").stdout)
        self.assertEqual(len(compared["rows"] if "rows" in compared else compared["plans"]), 2)

    def test_what_it_is_compared_with_plans_too(self):
        for planner in ("gdp-one", "hdp", "cross-entropy", "placeto", "giph"):
            done = json.loads(self.espalier("plan", *MODEL, "-p", planner, "-o", "plan.json", "--budget", "400", "--json").stdout)
            self.assertEqual((done["status"], done["planner"]), ("feasible", planner))

    def test_placeto_sees_graphs_in_three_ways_and_answers_for_an_order(self):
        for embedding in ("message-passing", "graphsage", "p-gnn"):
            done = json.loads(self.espalier("plan", *MODEL, "-p", "placeto", "--embedding", embedding, "-o", "plan.json", "--budget", "60",
                                            "--json").stdout)
            self.assertEqual((done["status"], done["planner"]), ("feasible", "placeto"))
        command = ["orders", "--family", "nmt,fork-join", "--members", "1", "--seeds", "1", "--episodes", "1", "--orders", "alpha,bfs",
                   "--placer", "uniform-walk,placeto,placeto-literature", "--json"]
        told = self.espalier(*command).stdout
        self.assertEqual(told, self.espalier(*command, "--jobs", "3").stdout)
        placers = json.loads(told)["placers"]
        self.assertEqual([row["placer"] for row in placers], ["uniform-walk", "placeto", "placeto-literature"])
        self.assertIsNone(placers[0]["entropy"])
        self.assertAlmostEqual(placers[2]["entropy"], 1, places=3)

    def test_pretrained_and_fine_tuned_policies_are_files(self):
        self.espalier("learn", "pretrain", *LITTLE, "-o", "mine.safetensors", "--without", "gnmt")
        self.assertEqual(self.planned("--policy", "mine.safetensors")["status"], "feasible")
        self.espalier("learn", "finetune", *MODEL, "--policy", "mine.safetensors", "--updates", "3", "--checkpoint", "c.safetensors",
                      "-o", "tuned.safetensors")
        self.assertEqual(self.planned("--policy", "tuned.safetensors")["status"], "feasible")
        told = self.espalier("learn", "curve", "c.safetensors", "--svg", "c.svg").stdout
        self.assertIn("3 updates", told)
        tuned = json.loads(self.espalier("learn", "finetune", *MODEL, MODEL[0], "--updates", "8", "-o", "both.safetensors", "--json").stdout)
        self.assertEqual([model["calls"] for model in tuned["models"]], [64, 64])
        self.assertEqual(self.planned("--policy", "both.safetensors")["status"], "feasible")
        self.assertIn("<svg", (self.folder / "c.svg").read_text())

    def test_contrast_comes_before_all_else_and_changes_what_is_learnt(self):
        names = {0: "plain.safetensors", 3: "contrasted.safetensors"}
        for epochs, name in names.items():
            self.espalier("learn", "finetune", *MODEL, "--updates", "2", "--contrast", epochs, "-o", name)
        plain, contrasted = ((self.folder / name).read_bytes() for name in names.values())
        self.assertNotEqual(plain, contrasted)
        self.espalier("learn", "pretrain", *LITTLE, "--contrast", "1", "-o", "mine.safetensors")
        self.assertEqual(self.planned("--policy", "mine.safetensors")["status"], "feasible")

    def test_a_net_of_another_shape_is_a_policy_too(self):
        shape = ["--width", "16", "--segment", "32", "--attention-layers", "0", "--gate", "node", "--refinements", "1", "--spectral", "4"]
        sizes = []
        for name, arguments in (("usual.safetensors", []), ("small.safetensors", shape)):
            told = self.espalier("learn", "pretrain", *LITTLE, *arguments, "-o", name, "--json").stdout
            sizes.append(json.loads(told)["weights"])
            self.assertEqual(self.planned("--policy", name)["status"], "feasible")
        self.assertLess(sizes[1], sizes[0])
        # What begins from a policy has its shape.
        self.espalier("learn", "finetune", *MODEL, "--policy", "small.safetensors", "--updates", "2", "-o", "tuned.safetensors")
        self.assertEqual(self.planned("--policy", "tuned.safetensors")["status"], "feasible")
        self.refused("learn", "pretrain", *LITTLE, "--width", "30", "-o", "mine.safetensors", says="--width: 30 is not a multiple of 4")
        self.espalier("learn", "pretrain", *LITTLE, "--coarsening", "learned", "-o", "grouping.safetensors")
        self.assertEqual(self.planned("--policy", "grouping.safetensors")["status"], "feasible")
        self.assertEqual(self.planned("--policy", "grouping.safetensors", "--fine-tune", "2")["status"], "feasible")
        self.refused("learn", "pretrain", *LITTLE, "--coarsening", "fine", "-o", "mine.safetensors", says="fine not in")
        self.refused("learn", "pretrain", *LITTLE, "--gate", "door", "-o", "mine.safetensors", says="door not in")

    def test_a_killed_training_goes_on_to_the_same_bytes(self):
        command = ["learn", "finetune", *MODEL, "--updates", "40"]
        self.espalier(*command, "-o", "whole.safetensors", "--checkpoint", "whole.checkpoint")
        begun = subprocess.Popen([BINARY, *map(str, command), "-o", "broken.safetensors", "--checkpoint", "broken.checkpoint"],
                                 cwd=self.folder, env=environment(), stdout=subprocess.DEVNULL)
        while begun.poll() is None and not (self.folder / "broken.checkpoint").exists():
            time.sleep(0.002)
        begun.send_signal(signal.SIGKILL)
        begun.wait()
        self.espalier(*command, "-o", "broken.safetensors", "--checkpoint", "broken.checkpoint")
        for name in ("safetensors", "checkpoint"):
            self.assertEqual((self.folder / f"whole.{name}").read_bytes(), (self.folder / f"broken.{name}").read_bytes())

    def test_what_cannot_be_is_refused(self):
        self.write("x.safetensors", "no policy")
        self.refused("plan", *MODEL, "-p", "gdp", "--policy", "x.safetensors", says="x.safetensors")
        self.refused("plan", *MODEL, "-p", "gdp", "--policy", "missing", says="missing")
        self.refused("learn", "pretrain", says="-o names the policy")
        self.refused("learn", "pretrain", "-o", "p", "--without", "gnmtt", says="did you mean 'gnmt'")
        self.refused("learn", "finetune", "-o", "p", says="expected a file")
        self.refused("learn", "curve", "x.safetensors", says="x.safetensors")
        self.refused("learn", "apply", *MODEL, "--device", "tpu", says="there is no device 'tpu'; expected cpu, cuda or cuda:N")
        self.refused("learn", "pretrain", "-o", "p", "--device", "cuda:99", says="no device 'cuda:99'; expected cpu")

    def test_a_guide_learns_and_guides(self):
        command = ["learn", "guide", "-o", "guide.safetensors", "--graphs", "2", "--updates", "20", "--without", "mmt,dlrm", "--json"]
        told = json.loads(self.espalier(*command).stdout)
        self.assertGreater(told["steps"], 0)
        self.assertTrue(0 <= told["guided"] <= 1 and 0 <= told["by_load"] <= 1)
        done = self.espalier("plan", *MODEL, "--learned", "--policy", "guide.safetensors", "--budget", "100000", "-o", "plan.json", "--json")
        self.assertEqual(json.loads(done.stdout)["status"], "feasible")
        self.refused("plan", *MODEL, "-p", "gdp", "--policy", "guide.safetensors", says="guide.safetensors")
        self.refused("learn", "guide", says="-o names the guide")
        self.refused("learn", "guide", "-o", "g", "--without", "resnet-50", says="a guide learns from no 'resnet-50'")
        self.refused("learn", "guide", "-o", "g", "--rounds", "3", says="learn guide: --rounds is for pretrain")

    def test_proposals_are_learnt_and_searched_by(self):
        command = ["learn", "proposals", "-o", "proposals.safetensors", "--graphs", "2", "--updates", "20", "--without", "gnmt", "--json"]
        told = json.loads(self.espalier(*command).stdout)
        self.assertGreater(told["changes"], 0)
        self.assertTrue(0 <= told["proposed"] <= 1 and 0 <= told["random"] <= 1)
        search = ["plan", *MODEL, "-p", "local-search", "--learned", "--budget", "300", "-o", "plan.json", "--json"]
        done = self.espalier(*search, "--policy", "proposals.safetensors")
        self.assertEqual(json.loads(done.stdout)["status"], "feasible")
        self.refused("plan", *MODEL, "--learned", "--policy", "proposals.safetensors", says="this is no guide of this search")
        self.refused("learn", "proposals", says="-o names the guide")
        self.refused("learn", "proposals", "-o", "g", "--without", "gnmtt", says="did you mean 'gnmt'")
        done = self.espalier("plan", *MODEL, "-p", "gdp-search", "--learned", "--budget", "300", "-o", "plan.json", "--json")
        self.assertEqual(json.loads(done.stdout)["status"], "feasible")

    def test_a_relocation_policy_learns_and_moves(self):
        command = ["learn", "relocation", "-o", "moves.safetensors", "--graphs", "2", "--updates", "3", "--json"]
        told = json.loads(self.espalier(*command).stdout)
        self.assertEqual(told["graphs"], 2)
        self.assertTrue(0 <= told["last_better"] <= 1)
        moves = (self.folder / "moves.safetensors").read_bytes()
        self.espalier(*command[:-1], "--jobs", "1")
        self.assertEqual(moves, (self.folder / "moves.safetensors").read_bytes())
        self.refused("learn", "relocation", says="-o names the policy")
        self.refused("learn", "relocation", "-o", "p", "--without", "gnmtt", says="did you mean 'gnmt'")
        self.refused("learn", "relocation", "-o", "p", "--rounds", "3", says="learn relocation: --rounds is for pretrain")
        plans = []
        for policy in ([], ["--policy", "moves.safetensors"]):
            done = self.espalier("plan", *MODEL, "-p", "giph", *policy, "--budget", "400", "-o", "plan.json", "--json")
            plans.append(json.loads(done.stdout)["status"])
        self.assertEqual(plans, ["feasible", "feasible"])
        self.refused("plan", *MODEL, "-p", "gdp", "--policy", "moves.safetensors", says="moves.safetensors")

    def test_options_of_other_actions_are_refused(self):
        self.refused("learn", "curve", "c.safetensors", "--seed", "3", says="learn curve: --seed is for pretrain, finetune, apply, guide, proposals and relocation")
        self.refused("learn", "pretrain", *MODEL[:1], "-o", "p", says="is for finetune, apply and curve")
        self.refused("learn", "pretrain", "--cluster", "local:2", "-o", "p", says="--cluster is for finetune and apply")
        self.refused("learn", "apply", *MODEL, "--rounds", "3", says="learn apply: --rounds is for pretrain")
        self.refused("learn", "apply", *MODEL, "b.pt2", says="learn apply: a second file ('b.pt2') is for finetune")
        self.refused("learn", "finetune", *MODEL, "--samples", "3", "-o", "p", says="--samples is for apply")


if __name__ == "__main__":
    if not BINARY:
        print("skipped: ESPALIER_BINARY is not set")
        sys.exit(77)
    unittest.main()
