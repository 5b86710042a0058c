"""What is told to Ray Serve, without running it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs the extra `cluster`")
pytest.importorskip("fastapi", reason="needs the extra `serve`")

import yaml
from ray.serve.schema import ServeDeploySchema

import sinkstream
from sinkstream.cluster.ray.replica import _TICK_S, PERIOD_S, Silence
from sinkstream.integrations.ray_serve import app, build
from sinkstream.integrations.ray_serve.scaling import replicas_wanted
from sinkstream.server.config import ServerConfig

EXAMPLE = Path(__file__).parents[4] / "examples" / "ray" / "cluster.yaml"
KEY = "SINKSTREAM_API_KEY"


def deployment_of(application: Any) -> Any:
    return application._bound_deployment


def config_of(application: Any) -> ServerConfig:
    (plan,) = deployment_of(application).init_args
    config: ServerConfig = plan.config
    return config


def test_ray_parses_the_example_and_builds_its_application(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "a-key")
    monkeypatch.setenv("SINKSTREAM_STORE", "postgresql://db/chat")
    monkeypatch.setenv("SINKSTREAM_SNAPSHOTS", "s3://chat/states")
    schema = ServeDeploySchema.model_validate(yaml.safe_load(EXAMPLE.read_text()))
    (application,) = schema.applications
    assert application.import_path == "sinkstream.integrations.ray_serve:build"
    assert [one.name for one in application.deployments] == ["sinkstream"]
    built = build(application.args)
    deployment = deployment_of(built)
    assert deployment.name == "sinkstream"
    assert deployment.ray_actor_options["num_cpus"] == 2
    config = config_of(built)
    assert (config.api_keys, config.store) == (("a-key",), "postgresql://db/chat")
    assert config.snapshots == "s3://chat/states"
    assert (config.allowed_hosts, config.model_name) == (("chat.example",), "smollm2")


def test_the_commented_autoscaling_of_the_example_is_valid() -> None:
    text = EXAMPLE.read_text()
    head, _, rest = text.partition("        num_replicas: 3\n")
    lines = [line.replace("        # ", "        ") for line in rest.splitlines()[1:]]
    schema = ServeDeploySchema.model_validate(yaml.safe_load(head + "\n".join(lines)))
    (deployment,) = schema.applications[0].deployments
    assert deployment.num_replicas == "auto"
    assert deployment.autoscaling_config["max_replicas"] == 10


def test_each_socket_is_a_request_and_a_full_router_says_429() -> None:
    config = deployment_of(app(server={"max_connections": 300, "drain_s": 7}))._deployment_config
    assert config.max_ongoing_requests == 300
    assert config.backpressure_config.status_code == 429
    assert config.backpressure_config.retry_after_s == 1
    assert config.health_check_period_s == PERIOD_S
    assert config.graceful_shutdown_timeout_s == 37
    assert config.request_router_config.request_router_kwargs["num_fallback_replicas"] == 2


def test_a_range_of_replicas_scales_by_sequences() -> None:
    application = app(replicas=(2, 5), max_sequences=12)
    scaling = deployment_of(application)._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas) == (2, 5)
    assert scaling.target_ongoing_requests == 6
    assert build({"replicas": [2, 5]}) is not None


@pytest.mark.parametrize(
    ("server", "sentence"),
    [
        ({"hots": "a"}, r"`server` must have only settings of the server, but has \['hots'\]"),
        ({"host": "0.0.0.0"}, "`api_key` must be set, because `host` is"),
        ({"drain_s": -1}, "`drain_s` must be in"),
        ({"api_keys": "sk-abc"}, "`api_keys` must be a list of strings, but is of type str"),
        ({"cors_origins": "https://a.example"}, "`cors_origins` must be a list of strings"),
        ({"allowed_hosts": [8000]}, "must be a list of strings, but is a tuple of int"),
        ({"public_metrics": "no"}, "`public_metrics` must be true or false, but is of type str"),
        ({"max_queue": "64"}, "`max_queue` must be a number, but is of type str"),
        ({"peer_secret": 5}, "`peer_secret` must be a string, but is of type int"),
    ],
)
def test_a_wrong_setting_is_refused(
    server: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY, raising=False)
    with pytest.raises(sinkstream.InvalidArgument, match=sentence):
        app(server=server)


def test_silence_is_three_periods_without_a_question() -> None:
    silence = Silence()
    assert not any(silence.tick() for _ in range(100))  # nothing has asked yet
    silence.note_question()
    ticks = [silence.tick() for _ in range(7)]
    assert ticks.index(True) == round(3 * PERIOD_S / _TICK_S) - 1
    assert ticks[-1]
    silence.note_question()
    assert not silence.tick()


@dataclass
class Context:
    """The part of what Ray gives a policy that is used."""

    aggregated_metrics: dict[str, dict[str, float]]
    target_num_replicas: int = 4
    config: Any = field(default_factory=lambda: type("C", (), {"target_ongoing_requests": 8}))


def test_replicas_follow_the_replies_that_run_and_wait() -> None:
    assert replicas_wanted(Context({"sequences": {"a": 20, "b": 4}})) == (3, {})
    assert replicas_wanted(Context({"sequences": {"a": 9}})) == (9 / 8, {})  # Ray rounds up
    assert replicas_wanted(Context({})) == (4, {})
