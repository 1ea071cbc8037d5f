#!/usr/bin/env python3
# Sanitized builds leave this out: it starts the program often, and tests of modules have what it runs.
"""Models of the zoo, planning precision and short forms of clusters, as a user meets them.

Standard library only. Skipped (77) where the program is not built.
"""

import json
import sys
import unittest

from command import BINARY, FIXTURES, Command

MMT = ["--layers", "2", "--positions", "8", "--hidden", "32", "--heads", "4", "--feed-forward", "64"]
WORDS = [*MMT, "--vocabulary", "50"]
IMAGE = ["--image", "8", "--patch", "4", "--layers", "2", "--hidden", "32", "--heads", "4", "--feed-forward", "64"]
SMALL = {
    "mmt": MMT,
    "case-study": MMT,
    "sequential": MMT,
    "dlrm": ["--layers", "2", "--width", "16", "--rows", "20", "--embedding", "4", "--bag", "3"],
    "candle-uno": ["--layers", "2", "--width", "16"],
    "candle-uno-flexflow": ["--layers", "2", "--width", "16"],
    "gpt": ["--layers", "2", "--hidden", "32", "--heads", "4", "--positions", "8", "--vocabulary", "50"],
    "bert": WORDS,
    "llama": [*WORDS, "--key-value-heads", "2"],
    "mixture-of-experts": [*WORDS, "--key-value-heads", "2", "--experts", "4"],
    "transformer-xl": WORDS,
    "t5": ["--layers", "2", "--hidden", "32", "--heads", "4", "--head-width", "8", "--source", "9", "--target", "7",
           "--vocabulary", "50"],
    "whisper": ["--layers", "2", "--hidden", "32", "--heads", "4", "--source", "9", "--target", "7", "--vocabulary", "50"],
    "gnmt": ["--layers", "2", "--length", "3", "--hidden", "8", "--vocabulary", "16"],
    "vit": IMAGE,
    "clip": [*IMAGE, "--text-layers", "2", "--text-hidden", "16", "--text-heads", "2", "--positions", "6",
             "--vocabulary", "50"],
    "vision-language": [*WORDS, "--key-value-heads", "2", "--image", "8", "--patch", "4", "--encoder-layers", "2",
                        "--encoder-hidden", "16", "--encoder-heads", "2"],
    "co-attention": [*WORDS, "--region-layers", "2", "--connections", "2", "--region-hidden", "16", "--region-heads", "2"],
    "resnet": ["--depth", "18", "--image", "32"],
    "inception-v3": ["--image", "107", "--auxiliary", "0"],
    "nasnet": ["--cells", "1", "--filters", "8", "--image", "40"],
    "amoebanet": ["--layers", "3", "--filters", "16", "--image", "32"],
    "u-net": ["--width", "4", "--levels", "2", "--image", "8"],
    "wavenet": ["--layers", "6", "--channels", "4", "--skip", "6", "--length", "20"],
    "rnnlm": ["--hidden", "8", "--length", "3", "--vocabulary", "16"],
    "gnn": ["--chunks", "3", "--layers", "2", "--vertices", "5", "--edges", "12", "--hidden", "8"],
}  # fmt: skip
MODEL = str(FIXTURES / "three_branch.pt2")


class Zoo(Command):
    def write_model(self, name, *arguments, output="g.json"):
        self.espalier("zoo", name, *SMALL[name], *arguments, "-o", output)
        return output

    def test_every_model_is_written_and_read(self):
        for name in SMALL:
            for output in ("g.json", "g.txt"):
                self.write_model(name, output=output)
            self.assertIn("every operator is supported", self.espalier("inspect", output, "-b", "8").stdout)

    def test_a_model_is_read_by_every_verb_that_reads_one(self):
        for name in ("mmt", "gnmt"):
            for output in ("g.json", "g.txt"):
                self.write_model(name, output=output)
                self.espalier("plan", output, "-c", "4xA100-80GB", "-b", "8", "--budget", 100_000, "-o", "plan.json")
                self.espalier("simulate", "plan.json")
            self.espalier("compare", output, "-c", "2xT4", "-b", "8")

    def test_the_list_names_models_and_settings(self):
        listed = self.espalier("zoo", "--list").stdout
        for word in ("mmt", "gnmt", "--branches", "--vocabulary"):
            self.assertIn(word, listed)
        self.assertEqual([row["model"] for row in json.loads(self.espalier("zoo", "--list", "--json").stdout)["models"]],
                         list(SMALL))

    def test_a_setting_is_explained_by_each_model(self):
        told = json.loads(self.espalier("zoo", "--list", "--json").stdout)["settings"]
        what = {(row["model"], row["setting"]): row["what"] for row in told}
        depth = next(row for row in told if row["model"] == "resnet" and row["setting"] == "--depth")
        self.assertEqual((depth["least"], depth["usual"], depth["most"]), (18, 50, 152))
        self.assertEqual(what["t5", "--layers"], "layers of the encoder, and of the decoder")
        one = json.loads(self.espalier("zoo", "t5", "--list", "--json").stdout)
        self.assertEqual([row["model"] for row in one["models"]], ["t5"])
        self.assertEqual({row["model"] for row in one["settings"]}, {"t5"})

    def test_a_training_graph_takes_as_long_as_its_forward_graph(self):
        forward = json.loads(self.espalier("inspect", self.write_model("gnmt"), "-c", "1xA100-80GB", "-b", "8",
                                           "--json").stdout)
        training = json.loads(self.espalier("inspect", self.write_model("gnmt", "--training"), "-c", "1xA100-80GB",
                                            "-b", "8", "--json").stdout)
        for key in ("forward_ns", "backward_ns", "forward_flops", "backward_flops"):
            self.assertEqual(forward[key], training[key], key)
        self.assertGreater(training["operators"], 2 * forward["operators"])

    def test_the_same_command_writes_the_same_bytes(self):
        first = (self.folder / self.write_model("gnmt", "--training", output="a.json")).read_bytes()
        self.assertEqual(first, (self.folder / self.write_model("gnmt", "--training", output="b.json")).read_bytes())

    def test_a_plan_on_many_devices_is_short_for_people_and_whole_for_machines(self):
        sizes = ["--layers", 2, "--hidden", 32, "--heads", 4, "--feed-forward", 64, "--positions", 8]
        self.espalier("zoo", "mmt", "--branches", 20, *sizes, "-o", "g.txt")
        job = ["g.txt", "-c", "5x8xV100-16GB@100Gb", "-b", 64, "-m", 1, "-p", "even"]
        printed = self.espalier("plan", *job).stdout
        self.assertIn("branches.0.layers.1 and 19 more", printed)
        self.assertIn("\n8 more devices are ", printed)
        self.assertIn("\n8 more devices hold ", printed)
        self.assertIn("\n8 more devices hold ", self.espalier("simulate", "plan.json").stdout)
        whole = json.loads(self.espalier("plan", *job, "--json").stdout)
        self.assertEqual(len(whole["memory"]), 40)
        self.assertEqual(max(len(stage["after"]) for stage in whole["stages"]), 20)
        ones = "+".join(["1"] * 40)
        columns = ["--columns", "planner,replicas"]
        self.assertIn("1 each", self.espalier("compare", *job, *columns).stdout)
        self.assertNotIn(ones, self.espalier("compare", *job, *columns).stdout)
        self.assertIn(ones, self.espalier("compare", *job, *columns, "--format", "csv").stdout)

    def test_wrong_input_is_refused(self):
        self.refused("zoo", "gnmd", "-o", "g.json", says="did you mean 'gnmt'?")
        self.refused("zoo", "-o", "g.json", says="expected the name of a model")
        self.refused("zoo", "gnmt", says="-o names the file")
        self.refused("zoo", "mmt", "--length", "5", "-o", "g.json", says="mmt has no setting 'length'")
        self.refused("zoo", "gnmt", "--layers", "1", "-o", "g.json", says="expected 2 to 100")
        self.refused("zoo", "mmt", "--heads", "7", "-o", "g.json", says="7 heads do not divide")
        self.refused("zoo", "mmm", "--list", says="mmt")
        self.refused("zoo", "mmt", "-o", "gone/g.json", says="there is no folder 'gone'")


class Precision(Command):
    def plan(self, *arguments):
        done = self.espalier("plan", MODEL, "-c", "2xA100-80GB", "--budget", 100_000, "-o", "plan.json", *arguments)
        return done.stderr

    def test_the_output_says_which(self):
        self.assertIn("precision: f32: matrix work at 19.5 Tflop/s on A100-80GB (--precision: tf32 156, bf16 312)",
                      self.plan())
        self.assertIn("precision: tf32: matrix work at 156 Tflop/s", self.plan("--precision", "tf32"))
        self.assertIn("precision: bf16: matrix work at 312 Tflop/s", self.plan("--precision", "bf16"))
        self.assertEqual(json.loads((self.folder / "plan.json").read_text())["training"]["precision"], "bf16")

    def test_bf16_halves_parameters_and_keeps_master_weights(self):
        memory = {}
        for precision in ("f32", "bf16"):
            self.plan("--precision", precision, "--planner", "single")
            memory[precision] = json.loads((self.folder / "plan.json").read_text())["staged"]["stages"][0]["memory"]
        self.assertEqual(2 * memory["bf16"]["parameters"], memory["f32"]["parameters"])
        self.assertEqual(2 * memory["bf16"]["gradients"], memory["f32"]["gradients"])
        self.assertEqual(2 * memory["bf16"]["optimizer_state"], 3 * memory["f32"]["optimizer_state"])  # 12 to 8 bytes

    def test_a_plan_simulates_with_its_bounds(self):
        self.plan("--precision", "bf16")
        said = self.espalier("simulate", "plan.json").stdout
        self.assertRegex(said, "no plan.* can take less than")
        self.assertIn("precision: bf16\n", said)

    def test_wrong_input_is_refused(self):
        self.refused("plan", MODEL, "--precision", "fp8", says="expected f32, tf32 or bf16")
        self.write("costs.txt", "cost a cpu batch=1 f=1ms\n")
        self.refused("plan", MODEL, "--precision", "bf16", "--costs", "costs.txt", says="measured in the model's own types")

    def test_the_links_that_a_short_form_assumes_are_printed(self):
        self.assertIn("2xA100-80GB is taken to have 300GB/s and 5us inside a host of A100-80GB", self.plan())


if __name__ == "__main__":
    if not BINARY:
        print("skipped: ESPALIER_BINARY is not set")
        sys.exit(77)
    unittest.main()
