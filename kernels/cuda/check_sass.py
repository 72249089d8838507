#!/usr/bin/env python3
"""Holds the machine code of an image of kernels against sass_rules.txt.

    kernels/cuda/check_sass.py [IMAGE] [--rules FILE] [--list]

IMAGE is a kernels.fatbin, by default the newest that cargo left in target/. Exit status 1: a rule is broken, or meant for no
kernel that is there; 2: the check could not be made. --list prints how often each kernel has each instruction.

cuobjdump and nvdisasm are those of CUOBJDUMP and NVDISASM (paths), TAPER_CUDA_PACKAGES (a folder of `pip install --target`),
PATH, or Python's `nvidia` packages.
"""

import argparse
import collections
import fnmatch
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
FATBIN_MAGIC = 0xBA55ED50


def fail(message):
    print(f"check_sass: {message}", file=sys.stderr)
    sys.exit(2)


def newest_image():
    images = HERE.parent.parent.glob("target/**/build/taper-kernels-*/out/kernels.fatbin")
    images = [image for image in images if image.stat().st_size > 0]
    return max(images, key=lambda image: image.stat().st_mtime, default=None)


def tool(name):
    named = os.environ.get(name.upper())
    candidates = [named] if named else []
    if not named:
        if packages := os.environ.get("TAPER_CUDA_PACKAGES"):
            candidates.append(pathlib.Path(packages) / "nvidia/cu13/bin" / name)
        candidates.append(shutil.which(name))
        try:
            import nvidia

            candidates += [pathlib.Path(folder) / "cu13/bin" / name for folder in nvidia.__path__]
        except ImportError:
            pass
    for candidate in candidates:
        if candidate and os.access(candidate, os.X_OK):
            return str(candidate)
    fail(f"{named}: not there" if named else f"no {name}: `pip install --no-deps -r {HERE}/requirements.txt`")


def modules(image):
    """The fatbins of an image, which lie one behind the other: each says in its header how long it is."""
    at = 0
    while at < len(image):
        if len(image) - at < 16:
            fail(f"the image is cut at byte {at}")
        magic, _version, head, size = struct.unpack_from("<IHHQ", image, at)
        if magic != FATBIN_MAGIC or at + head + size > len(image):
            fail(f"no fatbin at byte {at}")
        yield image[at : at + head + size]
        at += head + size


def disassemble(module):
    """What cuobjdump prints of all architectures of a fatbin."""
    cuobjdump, nvdisasm = tool("cuobjdump"), tool("nvdisasm")
    # cuobjdump looks for nvdisasm in PATH.
    path = os.pathsep.join([str(pathlib.Path(nvdisasm).parent), os.environ.get("PATH", "")])
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "module.fatbin"
        file.write_bytes(module)
        command = [cuobjdump, "-sass", str(file)]
        done = subprocess.run(command, env=os.environ | {"PATH": path}, capture_output=True, text=True)
    if done.returncode:
        fail(f"{cuobjdump}: {done.stderr or done.stdout}")
    return done.stdout


INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*(?:\.[\w.]+)?)")


def count(text):
    """{(kernel, architecture): {instruction: how often}}"""
    kernels = {}
    architecture = kernel = None
    for line in text.splitlines():
        if found := re.match(r"\s*code for (sm_\w+)", line):
            architecture = found[1]
        elif found := re.match(r"\s*Function\s*:\s*(\S+)", line):
            kernel = kernels.setdefault((found[1], architecture), collections.Counter())
        elif kernel is not None and (found := INSTRUCTION.match(line)):
            kernel[found[1]] += 1
    return kernels


def read_rules(text):
    rules = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        kernel, architecture, demands, wanted = words[0], words[1] if len(words) > 1 else "", [], None
        for word in words[2:]:
            if word in ("has", "lacks"):
                wanted = word == "has"
            elif wanted is None:
                break
            else:
                demands.append((word, wanted))
        if not demands:
            fail(f"rule {number}: {line!r} is not KERNEL ARCHITECTURE has|lacks INSTRUCTION...")
        rules.append((line, kernel, architecture, demands))
    return rules


def is_meant(kernel, patterns):
    """Whether one of the patterns, which commas separate, is the kernel's; `!name` takes it out."""
    patterns = patterns.split(",")
    excluded = any(fnmatch.fnmatchcase(kernel, pattern[1:]) for pattern in patterns if pattern.startswith("!"))
    return not excluded and any(fnmatch.fnmatchcase(kernel, pattern) for pattern in patterns)


def occurrences(instructions, name):
    return sum(times for found, times in instructions.items() if found == name or found.startswith(name + "."))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image", nargs="?", type=pathlib.Path, default=newest_image())
    parser.add_argument("--rules", type=pathlib.Path, default=HERE / "sass_rules.txt")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    if arguments.image is None:
        fail("no image: build with nvcc first, or name one")

    kernels = {}
    for module in modules(arguments.image.read_bytes()):
        kernels |= count(disassemble(module))
    if not kernels:
        fail(f"{arguments.image} has no machine code")
    if arguments.list:
        for (kernel, architecture), instructions in sorted(kernels.items()):
            words = " ".join(f"{name} {times}" for name, times in instructions.most_common())
            print(f"{kernel} {architecture}: {words}")

    architectures = {architecture for _, architecture in kernels}
    broken = 0
    for line, kernel, architecture, demands in read_rules(arguments.rules.read_text()):
        meant = [
            (at, instructions)
            for at, instructions in sorted(kernels.items())
            if is_meant(at[0], kernel) and fnmatch.fnmatchcase(at[1], architecture)
        ]
        wrong = [
            f"{name} {'is not there' if wanted else f'{found} times'} in {at[0]} for {at[1]}"
            for at, instructions in meant
            for name, wanted in demands
            if ((found := occurrences(instructions, name)) > 0) != wanted
        ]
        # An image for fewer architectures leaves out their rules; a name that is no kernel's is a mistake.
        if not meant and fnmatch.filter(architectures, architecture):
            wrong.append("there is no such kernel")
        broken += len(wrong)
        print(f"{'BROKEN' if wrong else 'ok    '} {len(meant):4} kernels  {' '.join(line.split())}")
        for words in wrong:
            print(f"         {words}")
    print(f"{arguments.image}: {len(kernels)} kernels for {' '.join(sorted(architectures))}, {broken} violations")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
