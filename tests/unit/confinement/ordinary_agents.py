"""Agents that do what ordinary agents do."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import urllib.request
from multiprocessing import shared_memory
from pathlib import Path


def calls_a_tool(task):
    with urllib.request.urlopen(task["url"], timeout=10) as answer:
        return float(answer.read())


def runs_programs(task):
    said = subprocess.run(["sh", "-c", "echo half | sed s/half/0.5/"], capture_output=True, text=True, check=True)
    code = "import json, ssl, sys; print(json.dumps(len(sys.path) > 0))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "true\n"
    return float(said.stdout)


def uses_git(task):
    folder = tempfile.mkdtemp()
    for words in (["init", "-q"], ["config", "user.email", "a@b.c"], ["config", "user.name", "a"]):
        subprocess.run(["git", "-C", folder, *words], check=True)
    Path(folder, "file").write_text("text")
    subprocess.run(["git", "-C", folder, "add", "."], check=True)
    subprocess.run(["git", "-C", folder, "commit", "-qm", "first"], check=True)
    log = subprocess.check_output(["git", "-C", folder, "log", "--format=%s"], text=True)
    return float(log == "first\n")


def draws(task):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.plot([1, 2, 3])
    with tempfile.NamedTemporaryFile(suffix=".png") as file:
        pyplot.savefig(file.name)
        return float(os.path.getsize(file.name) > 1000)


def _half(number):
    return number / 2


def uses_processes(task):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        halves = pool.map(_half, range(3))
    memory = shared_memory.SharedMemory(create=True, size=16)
    assert memory.buf is not None
    memory.buf[0] = 7
    memory.close()
    memory.unlink()
    with multiprocessing.Manager() as manager:
        return float(sum(manager.list(halves)))


def uses_temporary_files(task):
    with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile() as file:
        Path(folder, "a").write_text("text")
        Path(folder, "a").rename(Path.home() / "b")
        cached = Path(os.environ["XDG_CACHE_HOME"], "a", "b")
        cached.mkdir(parents=True)
        print(Path.home(), file.name)
        return float((Path.home() / "b").read_text() == "text")


def reads_the_project(task):
    return float(Path("data", "reward").read_text())


def uses_a_hub(task):
    cache = Path(os.environ["HF_HOME"])
    (cache / "written").write_text("text")
    return float((cache / "weight").read_text())


def writes_to_the_project(task):
    Path("results.txt").write_text("text")


def connects_elsewhere(task):
    try:
        urllib.request.urlopen(task["url"], timeout=10)
    except OSError as error:
        raise RuntimeError("the tool failed") from error


def leaves_much_behind(task):
    folder = Path.home()
    for _ in range(50):
        folder = folder / "deep"
        folder.mkdir()
    (folder / "file").write_text("text")
    (Path.home() / "link").symlink_to(task["kept"])
    (Path.home() / "deep" / "deep").chmod(0)
    Path.home().chmod(0)
    return 1.0


def finds_nothing(task):
    return float(os.listdir(Path.home()) == ["tmp"] and os.listdir(tempfile.gettempdir()) == [])
