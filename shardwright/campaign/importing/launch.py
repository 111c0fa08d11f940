"""A launch as shell text, read into a layout that renders the same command line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwright.campaign.importing.docker_options import DockerRun, image_words, read_docker_run
from shardwright.campaign.importing.engine_flags import Served, read_serve
from shardwright.campaign.importing.find import TOOLS, chosen_launch, engine_words, launch_at, script_of
from shardwright.campaign.importing.shell import Command, Remark, Script, Word
from shardwright.campaign.importing.shown import shown
from shardwright.errors import UsageError
from shardwright.gates.secret_texts import looks_secret, names_secret

_SHELLS = frozenset(("sh", "bash", "/bin/sh", "/bin/bash", "/usr/bin/bash"))
_COMPOSE = re.compile(r"^services:\s*$", re.MULTILINE)
_TAG = re.compile(r"(?:^|[^0-9.])v?([0-9]+\.[0-9]+(?:\.[0-9]+)?)(?![0-9])", re.ASCII)
_SECRET_NAME = re.compile(r"[A-Z][A-Z0-9_]*", re.ASCII)
_LAYOUT_NAME = re.compile(r"[^a-z0-9]+")
_PARTITION, _RUNNER, _API_KEY = "VLLM_PP_LAYER_PARTITION", "VLLM_USE_V2_MODEL_RUNNER", "VLLM_API_KEY"
_KNOWN_HERE = frozenset(("HOME", "PWD", "$(pwd)"))


@dataclass(frozen=True)
class Launch:
    """The keys of the layout, and what of the text they do not say or say otherwise."""

    layout: Mapping[str, Any]
    remarks: tuple[Remark, ...]


def read_launch(
    text: str,
    aliases: Mapping[str, str],
    *,
    name: str | None = None,
    version: str | None = None,
    nth: int | None = None,
) -> Launch:
    """Read one launch of a shell text.

    `aliases`: short names of the engine's flags to their full ones. `nth`: which of several launches, from 1. Raises
    UsageError where there is none, where it is not clear which, and where the text cannot be understood.
    """
    if _COMPOSE.search(text):
        raise UsageError(
            "this is a file of docker compose, not a shell text", fix="give the docker run command that it stands for"
        )
    script = script_of(text)
    command, at = chosen_launch(script, nth)
    builder = _Builder(script, aliases, name, version)
    return (
        builder.container(command, at)
        if command.words[at].text.rsplit("/", 1)[-1] in TOOLS
        else builder.local(command, at)
    )


class _Builder:
    """Puts one launch together; keeps the remarks and the names of secrets on the way."""

    def __init__(self, script: Script, aliases: Mapping[str, str], name: str | None, version: str | None) -> None:
        self._script = script
        self._aliases = aliases
        self._name = name
        self._version = version
        self._remarks = list(script.remarks)
        self._secrets: list[str] = []

    def container(self, command: Command, at: int) -> Launch:
        run = read_docker_run(command.words[at:])
        self._remarks += run.remarks
        assert run.image is not None
        self._must_be_known(run.image, "the image")
        entry, words = self._inside(run)
        served = read_serve(words, self._aliases)
        image, _, digest = run.image.text.partition("@")
        engine: dict[str, Any] = {"image": image} | ({"digest": digest} if digest else {})
        engine["vllm"] = self._version or self._tagged(image)
        engine |= entry
        variables = [(name, self._passed(name, value, command)) for name, value in run.variables]
        container: dict[str, Any] = {"tool": run.tool} if run.tool != "docker" else {}
        container |= run.container
        self._choose_port(container, served, run.published)
        return self._finished(
            served, engine, variables, container, run.name or image.rsplit("/", 1)[-1].partition(":")[0]
        )

    def local(self, command: Command, at: int) -> Launch:
        words = engine_words(command.words[at:])
        assert words is not None
        served = read_serve(words, self._aliases)
        program = command.words[at].text
        python = {"python": program} if "python" in program else {}
        if program.endswith("/vllm"):
            python = {"python": program.removesuffix("vllm") + "python"}
        engine = {"vllm": self._version or self._tagged(""), **python}
        given = [(*word.text.partition("="), word) for word in command.words[:at] if "=" in word.text]
        named = [(name, Word(value, word.line, word.unknown)) for name, _, value, word in given]
        variables = [*self._script.exported.items(), *command.variables, *named]
        port = served.port or "8000"
        container = {"publish": f"{served.host or '127.0.0.1'}:{port}:{port}"}
        return self._finished(served, engine, list(variables), container, "")

    def _tagged(self, image: str) -> str:
        found = _TAG.search(image.rpartition(":")[2]) if ":" in image else None
        if found is None:
            what = f"the image {image}" if image else "this host's Python"
            raise UsageError(f"which vLLM is in {what} is not said", fix="add --vllm 0.30.0, or whatever it is")
        return found[1]

    def _inside(self, run: DockerRun) -> tuple[dict[str, Any], Sequence[Word]]:
        """Keys of `engine:` for what the container begins with, and the engine's own words."""
        words = list(image_words(run))
        texts = [word.text for word in words]
        if texts[:1] and texts[0] in _SHELLS and len(texts) > 2 and texts[1].startswith("-") and texts[1].endswith("c"):
            return self._from_shell(run, words)
        inner = engine_words(words)
        if inner is not None:
            return _entry(words[: len(words) - len(inner)]), inner
        first = words[0].text if words else ""
        if run.entrypoint is None and (first.startswith("-") or "/" in first):
            return {"entrypoint": []}, words
        line = words[0].line if words else run.image.line if run.image else 0
        raise UsageError(
            f"line {line}: the container runs {first or 'what its image says'}, which is no vLLM that can be read here",
            why="the flags of the engine stand in a script of the image",
            fix="give the command that this script runs",
        )

    def _from_shell(self, run: DockerRun, words: Sequence[Word]) -> tuple[dict[str, Any], Sequence[Word]]:
        """The engine out of `bash -c TEXT NAME ARGS`; a text that passes on its arguments stays as the entry point."""
        text, name, rest = words[2], words[3:4], words[4:]
        values = {variable: value for variable, value in run.variables if value is not None}
        inner = script_of(text.text, values)
        if any([word.text for word in command.words] == ["exec", "$@"] for command in inner.commands):
            engine = engine_words(rest)
            if engine is not None:
                return _entry(rest[: len(rest) - len(engine)]), engine
        launches = [(command, at) for command in inner.commands if (at := launch_at(command)) is not None]
        if len(launches) != 1:
            raise UsageError(f"line {text.line}: {words[0].text} -c holds {len(launches)} launches of vLLM, not one")
        chosen, at = launches[0]
        if any(word.text == "$@" for word in chosen.words):
            return {"entrypoint": [word.text for word in (*words[:3], *name)]}, rest
        # What the text exports is the engine's, as what `docker run` passes is.
        run.variables += [*inner.exported.items(), *chosen.variables]
        for command in inner.commands:
            if command is not chosen:
                said = f"{command.words[0].text!r} before the engine is left out"
                why, fix = "the container runs the engine alone", "build it into the image"
                self._remarks.append(Remark(text.line, said, why, fix))
        found = [Word(word.text, text.line, word.unknown) for word in chosen.words[at:]]
        engine = engine_words(found)
        assert engine is not None
        return _entry(found[: len(found) - len(engine)]), engine

    def _passed(self, name: str, value: Word | None, command: Command) -> Word | None:
        """`-e NAME` takes the value that the shell has, where the text gives it one."""
        if value is not None:
            return value
        return dict(command.variables).get(name) or self._script.exported.get(name)

    def _choose_port(self, container: dict[str, Any], served: Served, published: Sequence[str]) -> None:
        port = served.port or "8000"
        given = next((one for one in published if one.rsplit(":", 1)[-1] == port), published[0] if published else "")
        if given:
            container["publish"] = given
        for other in published:
            if other != given:
                why, fix = "a layout publishes the engine's own port alone", "publish it by hand, or with a proxy"
                self._remarks.append(Remark(0, f"the published port {other} is left out", why, fix))
        if container.get("network") == "host":
            container["publish"] = f"{served.host or '0.0.0.0'}:{port}:{port}"
        elif not given:
            container["publish"] = f"127.0.0.1:8000:{port}"
            why, fix = "nobody outside of the container could ask it", "change container.publish"
            self._remarks.append(Remark(0, "the launch publishes no port; this one does, on this host alone", why, fix))
        elif given.rsplit(":", 1)[-1] != port:
            text = f"the engine listens on {port}, and {given} is published"
            why, fix = "a layout has one port inside, and tells the engine of it", f"container.publish decides: {given}"
            self._remarks.append(Remark(0, text, why, fix))

    def _finished(
        self,
        served: Served,
        engine: dict[str, Any],
        variables: list[tuple[str, Word | None]],
        container: dict[str, Any],
        called: str,
    ) -> Launch:
        self._remarks += served.remarks
        if served.model is None:
            raise UsageError("the launch names no model", fix="write it after vllm serve, or as --model")
        self._must_be_known(served.model, "the model")
        if served.model_flag:
            engine["model_flag"] = True
        env = self._environment(variables)
        parallel = dict(served.parallel)
        if _PARTITION in env:
            parallel["layer_partition"] = env.pop(_PARTITION)
        runner = env.pop(_RUNNER, None)
        if served.api_key is not None:
            self._secret(_API_KEY, served.api_key)
        serve = {key: value for key, value in served.serve.items() if not self._hidden(key, value)}
        platform = _platform(str(engine.get("image", "")), env)
        engine |= {"platform": platform} if platform else {}
        path, mount = _model_place(served.model.text, container.get("mounts", ()))
        if container.get("mounts"):
            # A layout mounts the checkpoint by itself.
            container["mounts"] = [one for one in container["mounts"] if one["target"] != served.model.text]
        model = {"path": path, "mount": mount, "revision": served.revision}
        layout: dict[str, Any] = {
            "schema": "shardwright/v1",
            "name": self._name or _layout_name(called or served.model.text.rstrip("/").rsplit("/", 1)[-1]),
            "runtime": None if "image" in engine else "local",
            "model": _given(model),
            "engine": engine,
            "parallel": parallel,
            "serve": serve,
            "speculative": served.speculative,
            "v2_runner": runner,
            "env": env,
            "secrets": sorted(set(self._secrets)),
            "container": _given(container),
        }
        remarks = [*self._remarks, *self._unset(served, env)]
        return Launch(_given(layout), tuple(sorted(remarks, key=lambda remark: remark.line)))

    def _environment(self, variables: Iterable[tuple[str, Word | None]]) -> dict[str, str]:
        env: dict[str, str] = {}
        for name, value in variables:
            if value is None or (value.unknown and value.text in (f"${{{value.unknown[0]}}}", f"${value.unknown[0]}")):
                # The shell's own value: what a layout takes from the environment at start.
                self._named(name, value)
            elif names_secret(name, value.text) or looks_secret(value.text):
                self._secret(name, value)
            else:
                env[name] = value.text
        return env

    def _named(self, name: str, value: Word | None) -> None:
        line = value.line if value else 0
        if not _SECRET_NAME.fullmatch(name):
            text = f"{name} comes from the environment, which a layout can say of names in capitals only"
            self._remarks.append(Remark(line, text, "it is left out", "write its value in env:"))
            return
        self._secrets.append(name)
        source = value.unknown[0] if value else name
        if source != name:
            text = f"{name} is taken from {source}; a layout reads it by its own name"
            fix = f"export {name}=${source} before deploy start"
            self._remarks.append(Remark(line, text, "secrets are given by name and read at start", fix))

    def _secret(self, name: str, value: Word) -> None:
        """A value that must stand nowhere: its name is kept, and it is told without being shown."""
        if not value.unknown:
            text = f"{name} holds a secret in plain text; only its name is kept"
            fix = f"export {name} before deploy start, and have the old one revoked"
            self._remarks.append(Remark(value.line, text, "whoever reads the script or `ps` has it", fix))
        self._secrets.append(name)

    def _hidden(self, key: str, value: Any) -> bool:
        texts = [str(item) for item in value] if isinstance(value, list) else [str(value)]
        if not any(looks_secret(text) or names_secret(key, text) for text in texts):
            return False
        text = f"--{key.replace('_', '-')} holds a secret in plain text, and is left out"
        self._remarks.append(Remark(0, text, "whoever reads the script or `ps` has it", "name it under secrets:"))
        return True

    def _must_be_known(self, word: Word, what: str) -> None:
        unknown = [name for name in word.unknown if name not in _KNOWN_HERE]
        if unknown:
            raise UsageError(
                f"line {word.line}: {what} is {word.text}, and the text does not say what {unknown[0]} is",
                fix="set it at the top of the text: NAME=value",
            )

    def _unset(self, served: Served, env: Mapping[str, str]) -> list[Remark]:
        """What still holds a variable or a substitution."""
        values = {f"serve.{key}": value for key, value in served.serve.items()} | {
            f"env.{k}": v for k, v in env.items()
        }
        holding = [key for key, value in values.items() if isinstance(value, str) and re.search(r"\$[{(]|`", value)]
        why, fix = "a layout is no shell text: it reaches the engine as it stands", "write the value"
        return [
            Remark(0, f"{key} still holds a variable or a command: {shown(values[key])}", why, fix) for key in holding
        ]


def _entry(words: Sequence[Word]) -> dict[str, Any]:
    texts = [word.text for word in words]
    return {} if texts == ["vllm", "serve"] else {"entrypoint": texts}


def _platform(image: str, env: Mapping[str, str]) -> str | None:
    """The platform where it is not CUDA, by the engine's own variables and the image's name."""
    if any(name.startswith("VLLM_CPU_") for name in env) or "cpu" in image:
        return "cpu"
    return "rocm" if "rocm" in image else None


def _given(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if value not in (None, "", {}, [])}


def _layout_name(text: str) -> str:
    return _LAYOUT_NAME.sub("-", text.lower()).strip("-") or "imported"


def _model_place(model: str, mounts: Iterable[Mapping[str, Any]]) -> tuple[str, str | None]:
    """Where the checkpoint lies on the host, and where the engine sees it if that is another place."""
    for mount in mounts:
        source, target = mount.get("source"), str(mount["target"]).rstrip("/")
        if source is not None and (model == target or model.startswith(f"{target}/")):
            path = str(source).rstrip("/") + model[len(target) :]
            return path, model if path != model else None
    return model.replace("${HOME}", "~"), None
