#!/usr/bin/env python3
"""The rules of the tree that a compiler does not check.

  * a module includes only modules above it in ORDER; runtime/ never includes planners/ or learned/
  * only runtime/ and learned/ include libtorch, and their own public headers may stay free of it
  * fmt appears in no header; every header has #pragma once
  * a file reaches what it names of ours, and a header what it names of the standard library, by its own includes or
    those of our headers that it includes: builds join files, where what one lacks another has
  * testing/ is included by tests, benchmarks and by testing/ only
  * a type of a named namespace has one definition: the linker would keep one of two and say nothing
  * no file names a place of one particular machine, nor does an entry of an archive

`layers_test.py` checks the tree, then plants one violation of each rule in a scratch tree and checks that it
is found: a check that cannot fail is worthless. Python's standard library only.
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

ORDER = ("base graph cluster cost plan frontend zoo schedule trace sim bound placement planners learned "
         "runtime report app cli runtime_cli").split()
NEVER = {("runtime", "planners"), ("runtime", "learned")}
TORCH_MODULES = {"runtime", "learned"}
TORCH_HEADER = re.compile(r"^(ATen|c10|torch|caffe2)/")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]', re.MULTILINE)
LOCAL_PLACES = re.compile(rb"(?<![\w./-])/(?:work|root|home)/\w")
NAMESPACE = re.compile(r"(inline )?namespace\b\s*([\w:]*)[^{=]*\{$")
TYPE = re.compile(r"(?:template\s*<.*>\s*)?(?:struct|class|union|enum(?: class| struct)?)\s+(\w+)\b(?!::)[^;]*(?:\{|$)")
ALIAS = re.compile(r"using (\w+) = ")
CONSTANT = re.compile(r"constexpr .*?\b(k[A-Z]\w*)(?:\[[^\]]*\])?(?: =|\{|$)")
FUNCTION = re.compile(r"(?!using|return|else|static_assert|throw|TEST|extern)(?=\w)[\w:<>,&*\s\[\]]*[\w>&*\]]\s[&*]?(\w+)\((.*)")
SOURCE = {".h", ".hpp", ".cc", ".cpp"}
NOT_CODE = re.compile(r'//[^\n]*|#\s*include[^\n]*|R"(\w*)\((?:.|\n)*?\)\1"|"(?:\\.|[^"\\\n])*"')
BEFORE_FUNCTION = re.compile(r"^(?:\[\[nodiscard\]\]|inline|constexpr|static|template\s*<.*?>)\s*")
# What a file itself makes of a name, members of its types included; more than a parser would find, never less.
MAKES_TYPE = re.compile(r"\b(?:struct|enum class|class|enum|using|typename)\s+(?:\w+::)*(\w+)|\b(?:TEST(?:_[FP])?|INSTANTIATE_TEST_SUITE_P)\((\w+)"
                        r"|\b(k[A-Z]\w*)(?=,|\s*\}| =|\[|\{)")
MAKES_FUNCTION = re.compile(r"(?:\b((?:\w+::)*\w+)|(?<=[\w>&*)\]])[>&*\]])\s[&*]*(\w+)(?=[;={,(:\[)]| =| :)")
NAMES_TYPE = re.compile(r"(?<![\w.>:])[A-Zk]\w*\b")
NAMES_FUNCTION = re.compile(r"(?<![\w.>:])([a-z]+_\w*)\(")
NO_TYPE = set("return else throw not and or new case co_return".split())
STANDARD_NAME = re.compile(r"\bstd::(?:(chrono|filesystem)::)?(\w+)")
# Standard header: what it has of what our headers name.
STANDARD = {
    "algorithm": "any_of clamp copy erase find max max_element min none_of pop_heap push_heap sort unique",
    "array": "array get size_t",
    "atomic": "atomic memory_order_relaxed",
    "bit": "bit_width",
    "charconv": "from_chars to_chars",
    "chrono": "chrono",
    "cmath": "abs floor log10 pow",
    "compare": "strong_ordering",
    "condition_variable": "condition_variable",
    "cstddef": "ptrdiff_t size_t",
    "cstdint": "int16_t int32_t int64_t int8_t uint16_t uint32_t uint64_t uint8_t uintptr_t",
    "deque": "deque erase",
    "exception": "exception exception_ptr",
    "filesystem": "filesystem",
    "fstream": "ifstream ofstream ostream",
    "functional": "function greater hash less",
    "initializer_list": "initializer_list",
    "iosfwd": "ostream",
    "limits": "numeric_limits",
    "map": "map pair size_t",
    "memory": "make_shared make_unique shared_ptr unique_ptr weak_ptr",
    "mutex": "lock_guard mutex unique_lock",
    "numeric": "accumulate iota",
    "optional": "nullopt optional",
    "ostream": "ostream",
    "queue": "priority_queue queue",
    "set": "set size_t",
    "span": "ptrdiff_t size_t span",
    "sstream": "istringstream ostream ostringstream",
    "stdexcept": "logic_error runtime_error",
    "string": "hash size_t stod stoi stoll string to_string",
    "string_view": "hash size_t string_view",
    "thread": "thread",
    "tuple": "get tie tuple",
    "unordered_map": "pair size_t unordered_map",
    "unordered_set": "size_t unordered_set",
    "utility": "declval exchange forward get move pair swap",
    "variant": "get get_if holds_alternative monostate variant visit",
    "vector": "erase size_t vector",
}
WITH_NAME = {}
for has, names in STANDARD.items():
    for name in names.split():
        WITH_NAME.setdefault(name, set()).add(has)


def module_of(path):
    """graph of espalier/graph/…; testing, tests and bench of those folders; None elsewhere."""
    parts = path.parts
    if parts[0] == "espalier" and len(parts) > 2:
        return parts[1]
    return parts[0] if parts[0] in ("testing", "tests", "bench") else None


def is_test(path):
    return path.stem.endswith("_test") or path.parts[0] in ("testing", "tests")


def check_source(path, text, root):
    module = module_of(path)
    if module is None:
        return
    header = path.suffix in (".h", ".hpp")
    if path.parts[0] == "espalier" and module not in ORDER:
        yield f"{path}: '{module}' is not a module; add it to ORDER in tests/layers_test.py"
        return
    if header and "#pragma once" not in text:
        yield f"{path}: a header without #pragma once"
    for match in INCLUDE.finditer(text):
        name = match[1]
        line = text.count("\n", 0, match.start(1)) + 1
        where = f"{path}:{line}: includes {name}:"
        parts = name.split("/")
        if header and parts[0] == "fmt":
            yield f"{where} fmt stays out of headers (torch's include folder has another version)"
        if TORCH_HEADER.match(name):
            folder_needs_torch = (root / path.parent / "needs_torch").exists()
            if module in ORDER and module not in TORCH_MODULES:
                yield f"{where} only runtime/ and learned/ include libtorch"
            elif module in ("testing", "bench") and not folder_needs_torch:
                yield f"{where} only runtime/, learned/ and folders with a file needs_torch include libtorch"
        if parts[0] == "testing" and not is_test(path) and module != "bench":
            yield f"{where} testing/ is for tests and benchmarks only"
        if parts[0] == "espalier" and len(parts) > 2 and module in ORDER and parts[1] != module:
            if parts[1] not in ORDER:
                yield f"{where} no such module"
            elif (module, parts[1]) in NEVER:
                yield f"{where} {module}/ never includes {parts[1]}/"
            elif ORDER.index(parts[1]) > ORDER.index(module):
                yield f"{where} {parts[1]}/ stands below {module}/; pass the missing piece down as a value"
        if parts[0] == "espalier" and not (root / name).exists():
            yield f"{where} no such file"


def reached(root, path, known):
    """Headers that a file of ours includes, itself or through ours, as they are written."""
    if path not in known:
        known[path] = set()  # against a ring
        for match in INCLUDE.finditer((root / path).read_text(encoding="utf-8")):
            known[path].add(match[1])
            if (root / match[1]).is_file():
                known[path] |= reached(root, pathlib.Path(match[1]), known)
    return known[path]


def code_of(text):
    """The text without comments and includes, and with empty strings for its strings."""
    return NOT_CODE.sub(lambda found: "" if found[0][0] in "/#" else '""', text)


def made_for_others(text):
    """(types and constants, functions) that a header of ours has for whoever includes it: namespaces' own."""
    types, functions = set(), set()
    for _, code, _ in in_namespaces(text):
        code = BEFORE_FUNCTION.sub("", code)
        if found := TYPE.match(code) or ALIAS.match(code) or CONSTANT.match(code):
            types.add(found[1])
        elif found := FUNCTION.match(code):
            functions.add(found[1])
    return types, functions


def check_our_names(root, files, known):
    """Types, constants and functions of two words or more: a function of one word is too often something else's name."""
    texts = {path: (root / path).read_text(encoding="utf-8") for path in files if path.suffix in SOURCE and module_of(path)}
    codes = {path: code_of(text) for path, text in texts.items()}
    has = {"type": {}, "function": {}}
    for path, text in texts.items():
        if path.suffix == ".h":
            for kind, names in zip(has, made_for_others(text)):
                for name in names:
                    has[kind].setdefault(name, set()).add(str(path))
    makes = {str(path): {"type": {name for found in MAKES_TYPE.findall(code) for name in found},
                         "function": {found[2] for found in MAKES_FUNCTION.finditer(code) if found[1] not in NO_TYPE}}
             for path, code in codes.items()}
    for path, code in sorted(codes.items()):
        reaches = {str(path)} | reached(root, path, known) & makes.keys()
        for kind, pattern in (("type", NAMES_TYPE), ("function", NAMES_FUNCTION)):
            for name in sorted(set(pattern.findall(code)) & has[kind].keys()):
                if not has[kind][name] & reaches and not any(name in makes[header][kind] for header in reaches):
                    line = next((number for number, text in enumerate(texts[path].split("\n"), 1) if re.search(rf"\b{name}\b", text.split("//")[0])), 1)
                    yield f"{path}:{line}: names {name} and does not reach {' or '.join(sorted(has[kind][name]))}"


def check_standard_names(root, files, known):
    for path in sorted(files):
        if path.suffix != ".h" or module_of(path) in {None, "tests", "bench", *TORCH_MODULES}:
            continue
        said = set()
        for number, line in enumerate((root / path).read_text(encoding="utf-8").split("\n"), 1):
            for match in STANDARD_NAME.finditer(line.split("//")[0]):
                name = match[1] or match[2]
                if name in said:
                    continue
                said.add(name)
                if name not in WITH_NAME:
                    yield f"{path}:{number}: std::{name} is in no row of STANDARD in tests/layers_test.py; add it"
                elif not WITH_NAME[name] & reached(root, path, known):
                    yield f"{path}:{number}: names std::{name} and reaches none of {', '.join(sorted(WITH_NAME[name]))}"


def in_namespaces(text):
    """(namespaces around it, "" for an unnamed one, code, number) of each line."""
    spaces = []
    for number, line in enumerate(text.split("\n"), 1):
        code = line.split("//")[0].rstrip()
        if opened := NAMESPACE.match(code):
            spaces.append(opened[2])
        elif spaces and code == "}" and "// namespace" in line:
            spaces.pop()
        else:
            yield spaces, code, number


def defined_types(text):
    """(name with its namespaces, line) of each type that other files could define too: none of an unnamed namespace."""
    for spaces, code, number in in_namespaces(text):
        if "" not in spaces and (found := TYPE.match(code)):
            yield "::".join([*spaces, found[1]]), number


def check_types(root, files):
    first = {}
    for path in sorted(files):
        if module_of(path) not in {*ORDER, "testing"} or path.suffix not in SOURCE or path.stem.endswith("_test"):
            continue
        for name, line in defined_types((root / path).read_text(encoding="utf-8")):
            if name in first:
                yield f"{path}:{line}: defines {name}, and so does {first[name]}"
            first.setdefault(name, f"{path}:{line}")


def calls_of(parameters):
    """How a function with these parameters can be called, as types: "const Toy&, int" and, if n has a default, "const Toy&"."""
    depth, parts = 0, [""]
    for letter in parameters:
        depth += (letter in "<({[") - (letter in ">)}]")
        parts = [*parts, ""] if depth == 0 and letter == "," else [*parts[:-1], parts[-1] + letter]
    types = [re.sub(r"(?<=[\s&*>])\w+$", "", part.split("=")[0].strip()).strip() for part in parts]
    needed = sum("=" not in part for part in parts)
    return [", ".join(types[:count]) for count in range(needed, len(types) + 1)]


def unnamed(text):
    """(namespaces and name, alias's text, line) of each type, alias, constant and call of a function in unnamed namespaces."""
    begun = None  # a function's name, what its parentheses hold so far, and its line
    for spaces, code, number in in_namespaces(text):
        if "" not in spaces:
            continue
        if made := FUNCTION.match(code):
            begun = "::".join([*spaces, made[1]]), "", number
            code = made[2]
        if begun:
            begun = begun[0], f"{begun[1]} {code.strip()}", begun[2]
            if found := re.match(r"(.*)\)[^()]*\{$", begun[1]):
                yield from ((f"{begun[0]}({call})", None, begun[2]) for call in calls_of(found[1].strip()))
            if code.endswith(("{", ";", "}")):
                begun = None
            continue
        alias = ALIAS.match(code)
        if found := TYPE.match(code) or alias or CONSTANT.match(code):
            yield "::".join([*spaces, found[1]]), code if found is alias else None, number


def check_unnamed(root, files):
    """Builds join files of a module, so that names in unnamed namespaces meet, and hide those of the module's test headers."""
    first, shared = {}, {}
    for path in files:
        if path.name.endswith("_for_tests.h"):
            for spaces, code, line in in_namespaces((root / path).read_text(encoding="utf-8")):
                if made := FUNCTION.match(code):
                    shared[module_of(path), "::".join([*spaces, made[1]])] = f"{path}:{line}"
    for path in sorted(files):
        module = module_of(path)
        if module not in {*ORDER, "testing"} or path.suffix != ".cc":
            continue
        for name, alias, line in unnamed((root / path).read_text(encoding="utf-8")):
            key = module, path.stem.endswith("_test"), name
            if key in first and first[key][1] != path and (alias is None or first[key][0] != alias):
                yield f"{path}:{line}: defines {name.replace('::::', '::')} in an unnamed namespace, beside {first[key][1]}:{first[key][2]}, which builds join"
            first.setdefault(key, (alias, path, line))
            outer = module, re.sub(r"::::", "::", name).split("(")[0]
            if key[1] and outer in shared:
                yield f"{path}:{line}: {outer[1]} in an unnamed namespace hides {shared[outer]} from files that builds join"


def contents(root, path):
    """The file's bytes, and those of each entry that an archive holds compressed."""
    yield path, (root / path).read_bytes()
    if zipfile.is_zipfile(root / path):
        with zipfile.ZipFile(root / path) as archive:
            for entry in archive.infolist():
                try:
                    yield f"{path}({entry.filename})", archive.read(entry)
                except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError):
                    pass  # inputs of the fuzzer: what cannot be unpacked names nothing


def check_tree(root, files):
    files = [path for path in files if (root / path).is_file()]
    yield from check_types(root, files)
    yield from check_unnamed(root, files)
    known = {}  # reached() of each file
    yield from check_our_names(root, files, known)
    yield from check_standard_names(root, files, known)
    for path in sorted(files):
        if path.suffix in SOURCE:
            yield from check_source(path, (root / path).read_text(encoding="utf-8"), root)
        for where, content in contents(root, path):
            for match in LOCAL_PLACES.finditer(content):
                line = content.count(b"\n", 0, match.start()) + 1
                yield f"{where}:{line}: names a place of one particular machine: {match[0].decode()}…"


def files_of(root):
    """Tracked and new files in a git checkout, every file elsewhere (a source archive)."""
    listed = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard", "-z"],
                            capture_output=True, text=True)
    if listed.returncode == 0:
        return [pathlib.Path(name) for name in listed.stdout.split("\0") if name]
    hidden = {"build", ".venv", ".cache", ".git"}
    return [path.relative_to(root) for path in root.rglob("*")
            if path.is_file() and not hidden & set(path.relative_to(root).parts)]


GOOD = {
    "espalier/base/a.h": "#pragma once\n#include <vector>\n",
    "espalier/base/far.h": "#pragma once\nnamespace e {\nstruct Far {\n};\ninline constexpr int kFar = 1;\n[[nodiscard]] int far_away(int n);\n}  // namespace e\n",
    "espalier/base/far.cc": '#include "espalier/base/far.h"\nnamespace e {\nint far_away(int n) { return Far().n + kFar; }\n}  // namespace e\n',
    "espalier/graph/own.cc": '// Far and far_away(1)\nstruct Far { int far_away() const; };\nint x(Far n) { return n.far_away() + y("kFar"); }\n',
    "espalier/graph/b.h": '#pragma once\n#include "espalier/base/a.h"\nnamespace e {\nclass B;\nstruct C {\n};\n}  // namespace e\n',
    "espalier/graph/c.cc": "namespace e {\nnamespace {\nstruct C {\n};\nint f(const C& c) {\n}\nint g(const C& c, int n) {\n}\nint n() {\n  f(C());\n}\n}  // namespace\nclass B;\n}  // namespace e\n",
    "espalier/graph/b.cc": '#include "espalier/graph/b.h"\n#include <fmt/format.h>\nnamespace e {\nnamespace {\nint g(const C& c) {\n  if (g(c)) {\n  }\n}\n}  // namespace\n}  // namespace e\n',
    "espalier/graph/b_test.cc": '#include "testing/c.h"\n',
    "espalier/runtime/r.cc": "#include <ATen/ATen.h>\n",
    "espalier/graph/c_for_tests.h": "#pragma once\nnamespace e {\ninline int h(int n) {\n}\n}  // namespace e\n",
    "testing/c.h": '#pragma once\n#include "espalier/graph/b.h"\n',
    "bench/speed/needs_torch": "",
    "bench/speed/s.cc": "#include <c10/core/Device.h>\n",
    "docs/a.md": "Read ./work/notes and src/home/x.\n",
}
PLANTED = {
    "stands below": ("espalier/base/x.h", '#pragma once\n#include "espalier/graph/b.h"\n'),
    "never includes planners": ("espalier/runtime/x.cc", '#include "espalier/planners/p.h"\n'),
    "never includes learned": ("espalier/runtime/x.cc", '# include "espalier/learned/p.h"\n'),
    "only runtime/ and learned/ include": ("espalier/cli/x.cc", "#include <torch/types.h>\n"),
    "needs_torch include": ("bench/other/x.cc", "#include <ATen/ATen.h>\n"),
    "fmt stays out": ("espalier/graph/x.h", "#pragma once\n#include <fmt/core.h>\n"),
    "without #pragma once": ("espalier/graph/x.h", "int x();\n"),
    "testing/ is for tests": ("espalier/graph/x.cc", '#include "testing/c.h"\n'),
    "is not a module": ("espalier/misc/x.cc", "\n"),
    "no such file": ("espalier/graph/x.cc", '#include "espalier/base/gone.h"\n'),
    "so does": ("espalier/cost/x.h", "#pragma once\nnamespace e {\nenum class C : char {\n};\n}  // namespace e\n"),
    "builds join": ("espalier/graph/x.cc", "namespace e {\nnamespace {\nenum class C : char {\n};\n}  // namespace\n}  // namespace e\n"),
    "defines e::f(const C&)": ("espalier/graph/x.cc", "namespace e {\nnamespace {\nint f(const C& c,\n      int n = 1) {\n}\n}  // namespace\n}  // namespace e\n"),
    "hides espalier/graph/c_for_tests.h:3": ("espalier/graph/x_test.cc", "namespace e {\nnamespace {\nint h() {\n}\n}  // namespace\n}  // namespace e\n"),
    "names std::map and reaches none of map": ("espalier/graph/x.h", '#pragma once\n#include "espalier/base/a.h"\nstd::map<int, std::vector<int>> x();\n'),
    "names Far and does not reach espalier/base/far.h": ("espalier/graph/x.h", "#pragma once\n#include \"espalier/base/a.h\"\nFar x(int Far2, B::Far y);\n"),
    "names kFar and": ("espalier/graph/x.cc", "int x = kFar;\n"),
    "names far_away and": ("espalier/graph/x.cc", "// far_away of b.h\nint x(Far::Away y) { return y.far_away(1) + far_away(2); }\n"),
    "in no row of STANDARD": ("espalier/graph/x.h", "#pragma once\nstd::nothing_yet x();\n"),
    "one particular machine": ("docs/x.md", "See " + "/home" + "/someone/file.\n"),
}


def self_test():
    """Violations that the checks fail to find, and false alarms."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)

        def findings(extra):
            tree = {**GOOD, **extra}
            for name, text in tree.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            found = list(check_tree(root, [pathlib.Path(name) for name in tree]))
            for name in extra:
                (root / name).unlink()
            return found

        yield from (f"false alarm: {finding}" for finding in findings({}))
        with zipfile.ZipFile(root / "model.pt2", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("model.json", "traced at /home" + "/someone/model.py " * 9)
        if not any("model.json" in finding for finding in check_tree(root, [pathlib.Path("model.pt2")])):
            yield "planted violation not found: a place named inside an archive"
        for rule, (name, text) in PLANTED.items():
            found = findings({name: text})
            if not any(rule in finding for finding in found):
                yield f"planted violation not found: {rule} (found: {found})"


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    findings = [*check_tree(root, files_of(root)), *self_test()]
    for finding in findings:
        print(finding)
    print(f"layers: {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
