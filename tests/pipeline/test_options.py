"""Options of the Spark source for signing and encryption."""

from pathlib import Path

import pytest

from mqtrail.client import Credentials, InstanceConfig, TlsClientConfig
from mqtrail.pipeline.options import SourceOptionError, parse_options, security_options

WHERE = {"nameServer": "h:1", "topic": "t"}


def test_source_signs_and_encrypts_as_a_client_does() -> None:
    """The options of a client's config give equal credentials and TLS settings back; no repr shows a secret."""
    config = InstanceConfig(
        credentials=Credentials(access_key="ak", secret_key="sesame", security_token="sts"),
        tls=TlsClientConfig(
            enable=True,
            verify=False,
            key_password="pass",
            trust_path=Path("/ca.pem"),
            cert_path=Path("/c.pem"),
            key_path=Path("/c.key"),
        ),
    )
    options = parse_options({**WHERE, **security_options(config)})
    assert options.credentials == config.credentials
    assert options.tls == config.tls
    assert "sesame" not in repr(options)
    assert security_options(InstanceConfig()) == {}


def test_half_of_a_pair_is_refused() -> None:
    """The error does not show the secret."""
    with pytest.raises(SourceOptionError, match="secret_key without access_key") as error:
        parse_options({**WHERE, "secretKey": "sesame"})
    assert "sesame" not in str(error.value)
    with pytest.raises(SourceOptionError, match="cert_path"):
        parse_options({**WHERE, "tlsCertPath": "/c.pem"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("startingOffsets", "[" * 100_000),
        ("startingOffsets", '{"t":' * 100_000),
        ("startingOffsets", '{"t":{"b":{"0":1e999}}}'),
        ("startingOffsets", '{"t":{"b":{"0":NaN}}}'),
        ("startingOffsets", '{"t":{"b":{"0":' + "9" * 5_000 + "}}}"),
        ("endingOffsets", "null"),
        ("maxPartitions", "9" * 5_000),
        ("minPartitions", "x" * 100_000),
        ("maxOffsetsPerTrigger", "-1"),
    ],
)
def test_options_of_any_size_and_nesting_are_refused_in_words(name: str, value: str) -> None:
    """The error names the option and quotes its beginning."""
    with pytest.raises(SourceOptionError, match=f"option {name} is") as error:
        parse_options({**WHERE, name: value})
    assert len(str(error.value)) < 1_000
