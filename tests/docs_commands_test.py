#!/usr/bin/env python3
"""Commands in the documents are run, and must print what the document says.

In README.md, CONTRIBUTING.md, ARCHITECTURE.md and docs/**/*.md, every ```console block is a session:

    ```console
    $ espalier planners
    graphpipe   …
    ...
    ```

A line that starts with "$ " is a command, the lines after it are what it prints on stdout. A line "..." stands
for any number of lines; a command without lines after it only has to succeed; "# exit 3" as the last line of a
command's output says that it ends with that code. Outside of blocks, what stands as `espalier WORD`, and as
"Written by `WORD`, read by `WORD` and `WORD`." at the beginning of a line, is a verb of the program. The sessions of one document share one empty folder, into
which tests/fixtures/*.pt2 are linked. Only `espalier`, `cat` and `ls` are run. Skipped (77) where the program is
not built; the check of this checker runs all the same.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
RUNS = {"espalier", "cat", "ls"}
SAID = re.compile(r"`espalier ([a-z][\w-]*)")
WRITTEN = re.compile(r"^Written by [^.]*", re.MULTILINE)


def sessions(text):
    """(line, command, expected lines, exit code) of each command in the document."""
    for block in BLOCK.finditer(text):
        line = text.count("\n", 0, block.start(1)) + 1
        found = []
        for offset, content in enumerate(block[1].splitlines()):
            if content.startswith("$ "):
                found.append([line + offset, content[2:], [], 0])
            elif found and re.fullmatch(r"# exit \d+", content):
                found[-1][3] = int(content.split()[2])
            elif found:
                found[-1][2].append(content)
        yield from found


def matches(expected, actual):
    """Whether the lines agree, where an expected "..." stands for any number of lines."""
    pattern = "".join(r"(?:.*\n)*?" if line.strip() == "..." else re.escape(line.rstrip()) + r"\n"
                      for line in expected)
    return re.fullmatch(pattern, "".join(line.rstrip() + "\n" for line in actual)) is not None


def check(name, text, environment, fixtures):
    with tempfile.TemporaryDirectory() as folder:
        for fixture in fixtures:
            (pathlib.Path(folder) / fixture.name).symlink_to(fixture)
        for line, command, expected, code in sessions(text):
            if command.split()[0] not in RUNS:
                yield f"{name}:{line}: a console block runs {sorted(RUNS)} only; mark other commands ```sh"
                continue
            done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, capture_output=True,
                                  text=True, timeout=120)
            if done.returncode != code:
                yield f"{name}:{line}: '{command}' exits {done.returncode}, not {code}: {done.stderr.strip()}"
            elif expected and not matches(expected, done.stdout.splitlines()):
                yield f"{name}:{line}: '{command}' prints something else:\n{done.stdout}"


def wrong_verbs(name, text, verbs):
    """Verbs that the document names and the program does not have."""
    said = [(match.start(), match[1]) for match in SAID.finditer(text)]
    for sentence in WRITTEN.finditer(text):
        said += [(sentence.start(), word) for word in re.findall(r"`([a-z]+)`", sentence[0])]
    for place, verb in said:
        if verb not in verbs:
            yield f"{name}:{text.count(chr(10), 0, place) + 1}: there is no verb '{verb}'"


def self_test():
    document = "```console\n$ cat a.txt\none\n...\nfour\n$ ls gone\n# exit 2\n$ cat a.txt\n```\n"
    content = "one\ntwo\nthree\nfour\n"
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "a.txt"
        file.write_text(content)

        def findings(text):
            return list(check("self-test", text, os.environ, [file]))

        if findings(document):
            yield f"false alarm: {findings(document)}"
        for old, new in (("four", "five"), ("# exit 2", "# exit 0"), ("...\n", ""), ("$ ls", "$ rm")):
            if not findings(document.replace(old, new, 1)):
                yield f"planted mistake not found: {old!r} -> {new!r}"
    said = "Run `espalier plan`.\nWritten by `plan`, read by `run` and `--costs`. See `export`.\n"
    if list(wrong_verbs("self-test", said, {"plan", "run"})):
        yield "false alarm about verbs"
    for verb in ("plan", "run"):
        if not list(wrong_verbs("self-test", said, {"plan", "run"} - {verb})):
            yield f"planted verb not found: {verb}"


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    findings = list(self_test())
    binary = os.environ.get("ESPALIER_BINARY")
    if binary:
        path = f"{pathlib.Path(binary).parent}:{os.environ.get('PATH', '')}"
        environment = {**os.environ, "PATH": path, "LC_ALL": "C.UTF-8"}
        listing = subprocess.run([binary, "--help"], capture_output=True, text=True, timeout=60, check=True).stdout
        verbs = set(re.findall(r"^  ([a-z]+)  ", listing.split("Subcommands:")[1], re.MULTILINE))
        fixtures = sorted((root / "tests" / "fixtures").glob("*.pt2"))
        names = ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", *sorted((root / "docs").rglob("*.md"))]
        for document in (root / name for name in names):
            if document.exists():
                name = document.relative_to(root)
                text = document.read_text(encoding="utf-8")
                findings += check(name, text, environment, fixtures)
                findings += wrong_verbs(name, text, verbs)
    for finding in findings:
        print(finding)
    print(f"commands in documents: {len(findings)} findings")
    return 1 if findings else 0 if binary else 77


if __name__ == "__main__":
    sys.exit(main())
