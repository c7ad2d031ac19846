"""Site profiles: what ships, what is read, what is refused and in which words."""

import re

import pytest

from launcher.slurm.site import SITES, SiteProfile, full_name, load_site, time_limit
from trainer.errors import UserError
from trainer.schema import field_paths, flatten, parse


def written(folder, text):
    path = folder / "own site.yaml"
    path.write_text(text)
    return str(path)


def refusal(**fields):
    with pytest.raises(UserError) as caught:
        parse(SiteProfile, fields)
    return str(caught.value)


@pytest.mark.parametrize("name", sorted(path.stem for path in SITES.glob("*.yaml")))
def test_every_shipped_profile_is_valid(name):
    assert load_site(name).description


def test_the_template_names_every_field_and_says_the_defaults():
    text = (SITES / "template.yaml").read_text()
    for path, default in field_paths(SiteProfile):
        name = path.rsplit(".", 1)[-1]
        line = re.search(rf"^ *{name}: *([^#\n]*?) *(#.*)?$", text, re.MULTILINE)
        assert line, f"{path} is not in the template"
        if path == "retries":
            continue
        found = flatten(load_site("template").model_dump())[path]
        if line[2] and "default" in line[2] and "default null" not in line[2] and "default 0" not in line[2]:
            assert found == default, path


def test_names_that_are_not_there(tmp_path):
    with pytest.raises(UserError, match="did you mean generic_8gpu"):
        load_site("generic_8gpus")
    with pytest.raises(UserError, match=r"no such file; the profiles by name are .*template"):
        load_site(str(tmp_path / "none.yaml"))


def test_a_profile_is_remembered_so_that_it_is_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert full_name("site.yaml") == str(tmp_path / "site.yaml") and full_name("template") == "template"


def test_times_are_read_as_people_write_them(tmp_path):
    # YAML 1.1 takes 4:00:00 for a number to base 60
    assert load_site(written(tmp_path, "time: 4:00:00\n")).time_seconds == 14_400
    assert load_site(written(tmp_path, "time: 1-00:00:00\n")).time_seconds == 86_400
    assert load_site(written(tmp_path, "time: 90\nsignal_lead: 1.5e+1\n")).signal_lead == 15
    assert time_limit("10:30") == 630 and time_limit("1-12") == 129_600 and time_limit("2-1:30") == 178_200


@pytest.mark.parametrize("value", ["soon", "4h", "", "1:2:3:4", "0:20", 0, -5])
def test_times_that_are_none(value):
    assert "time=" in refusal(time=value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("partition: main\npartition: other\n", r"line 2: partition is given twice"),
        ("gpus: {flag: gres\ntime: 3\n", r"line \d"),
        ("just words\n", "holds no fields"),
        ("", "holds no fields"),
        ("partitoin: main\n", "unknown field partitoin; did you mean partition"),
        ("partition: 5\n", "partition=5 must be text"),
        ("gpus: {flag: per_node}\n", "gpus.flag='per_node' is not one of"),
    ],
)
def test_files_that_are_wrong(tmp_path, text, words):
    with pytest.raises(UserError, match=words):
        load_site(written(tmp_path, text))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"signal": "USR1"}, "USR1 is used by NCCL"),
        ({"signal": "SIGUSR1"}, "use USR2"),
        ({"signal": "CONT"}, "CONT cannot warn of the end of a job: use one of USR2"),
        ({"signal_lead": 600.0, "time": 10}, "signal_lead=600 s is not below time=10 (600 s)"),
        ({"mem_per_run": "8G", "mem_per_cpu": "2G"}, "exclude each other"),
        ({"mem_per_run": "8G", "extra": ["--mem-per-cpu=2G"]}, "--mem-per-cpu=2G and mem_per_run=8G"),
        ({"mem_per_run": "8GB"}, "'8GB' is no amount of memory as Slurm reads it: write \"8G\""),
        ({"mem_per_run": 8}, 'write "8G"'),
        ({"extra": ["--array=0-3"]}, "--array=0-3: the launcher sets --array itself: leave it out"),
        ({"extra": ["-t", "30"]}, "set time instead"),
        ({"extra": ["-e", "x"]}, "the launcher sets --error itself"),
        ({"extra": ["--wait"]}, "the launcher sets --wait itself"),
        ({"signal_lead": 0.3}, "signal_lead=0.3 must be at least 1"),
        ({"cells_per_task": "many"}, "cells_per_task: 'many' is neither a whole number from 1 nor fit"),
        ({"cells_per_task": 0}, "cells_per_task: 0 is neither a whole number from 1 nor fit"),
        ({"modules": "cuda"}, "modules='cuda' must be a list"),
        ({"cells_per_task": "fit"}, "needs gpus.per_node"),
        ({"container": {"kind": "pyxis"}}, "give both, or neither"),
        ({"container": {"kind": "pyxis", "image": "a.sqsh"}}, "needs python"),
        ({"python": "python3"}, "no absolute path"),
        ({"env": {"HF_TOKEN": "x"}}, "HF_TOKEN is a secret"),
        ({"env": {"PYTHONPATH": "x"}}, "set for each job"),
        ({"env": {"A-B": "x"}}, "no name of a variable"),
        ({"env": {"NCCL_IB_DISABLE": 1}}, "NCCL_IB_DISABLE=1 must be text: write it in quotes"),
        ({"retries": {"exception": 3}}, "no class of failure that `resume` starts a run again after"),
        ({"retries": {"node_failures": 3}}, "did you mean node_failure"),
        ({"omit": ["--array"]}, "omit"),
    ],
)
def test_fields_that_do_not_go_together(fields, words):
    assert words in refusal(**fields)


def test_retries_that_are_not_named_keep_their_budget():
    assert parse(SiteProfile, {"retries": {"lost": 0}}).retries == {
        "node_failure": 3, "lost": 0, "disk_full": 3
    }  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        # a whole node by generic resources, with or without the flag
        {
            "gpus": {"flag": "gres", "per_node": 8},
            "nodes_exclusive": True,
            "account": "a",
            "mem_per_run": "0",
        },
        {"gpus": {"flag": "none", "per_node": 8}, "nodes_exclusive": True},
        # constraint and account by kind of GPU, and no hyperthreads
        {"constraint": "h100", "account": "abc@h100", "qos": "qos_gpu-t3", "extra": ["--hint=nomultithread"]},
        # a partition for each type of GPU
        {"partition": "A100-80GB", "cpus_per_run": 28, "mem_per_run": "224G", "time": "1-00:00:00"},
        {"account": "proj-gpu", "gpus": {"flag": "gpus_per_node", "per_node": 8}, "modules": ["rocm"]},
        {"gpus": {"flag": "gpus_per_node", "per_node": 4, "type": "gh200"}, "cells_per_task": "fit"},
        {"container": {"kind": "apptainer", "image": "/i.sif", "mounts": ["/d:/d:ro"]}, "python": "/p"},
    ],
)
def test_public_clusters_can_be_written(fields):
    assert parse(SiteProfile, fields)
