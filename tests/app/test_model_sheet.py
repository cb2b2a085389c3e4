"""`ragstone models show` of checkpoints in 4 bits, and with keys and values in float8."""

import json
from pathlib import Path

from typer.testing import CliRunner

from app import cli
from tests.engine.test_int4_files import GPTQ_G64, save_int4_model


def test_models_show_knows_checkpoints_of_four_bits_and_float8_keys_and_values(tmp_path: Path) -> None:
    save_int4_model(tmp_path, GPTQ_G64)
    command = ["models", "show", str(tmp_path), "--device", "cpu"]
    assert "file (GPTQ, 4 bits, groups of 64, F16)" in CliRunner().invoke(cli.cli, command).stdout
    sheet = json.loads(CliRunner().invoke(cli.cli, [*command, "--json"]).stdout)
    assert sheet["served"]["weight_format"] == "packed"
    assert sheet["weight_bytes"]["packed"] < sheet["weight_bytes"]["bfloat16"] / 2
    float8 = {"RAGSTONE_KV_CACHE_DTYPE": "fp8"}
    refused = CliRunner().invoke(cli.cli, command, env=float8)
    assert refused.exit_code == 1
    assert 'kv_cache_dtype: "fp8" does not go with weights packed for CPUs' in f"{refused.exception}{refused.output}"
    half = CliRunner().invoke(cli.cli, [*command, "--json", "--dtype", "bfloat16"], env=float8)
    assert json.loads(half.stdout)["kv_bytes_per_token"] == sheet["kv_bytes_per_token"] // 2
