import base64
import hashlib
import hmac
import json
import secrets
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from loadmanager.adapters.clock import SystemClock
from loadmanager.adapters.http.security import guard as module
from loadmanager.adapters.http.security.guard import KeyUnusable, TokenRefused, Tokens

SECRET = b"0123456789abcdef0123456789abcdef"
NOW_S = 1_800_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now_s = NOW_S

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret.key"
    path.write_bytes(SECRET)
    return path


def signed(claims: dict[str, object], key: object = SECRET, algorithm: str = "HS256") -> str:
    return jwt.encode(claims, key, algorithm)  # type: ignore[arg-type] # any key, as a stranger has


def test_a_proof_ends_when_the_token_expires(secret_file: Path) -> None:
    clock = Clock()
    tokens = Tokens.of_secret_file(secret_file, leeway_s=5.0, clock=clock)
    token = signed({"sub": "operator", "exp": 4_000_000_000})
    assert tokens.proven(token).until_s == 4_000_000_005.0
    clock.now_s = 4_000_000_006.0
    with pytest.raises(TokenRefused, match="expired"):
        tokens.proven(token)


def hand_signed(
    payload: str, header: str = '{"alg":"HS256","typ":"JWT"}', key: bytes = SECRET
) -> str:
    """Return a token with exactly this JSON in it, as no library would make it."""
    parts = [base64.urlsafe_b64encode(part.encode()).decode() for part in (header, payload)]
    signed_part = ".".join(part.rstrip("=") for part in parts)
    signature = hmac.new(key, signed_part.encode(), hashlib.sha256).digest()
    return f"{signed_part}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


def unsigned(claims: dict[str, object]) -> str:
    parts = [{"alg": "none", "typ": "JWT"}, claims]
    coded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode() for part in parts]
    return ".".join(part.rstrip("=") for part in coded) + "."


OPERATOR: dict[str, object] = {"sub": "operator"}
HUGE = (str(10**30), str(10**400), "1" * 5000, "4000000000000")
ABSURD = ("1e400", "-1e400", "NaN", "-1", "-1e300", '"4000000000"', "true", "[1]", "{}", "null")
HEADERS = (
    *('{"alg":["HS256"]}', '{"alg":{}}', '{"alg":1e400}', '{"alg":"HS256","kid":[1]}', "[]"),
    *('{"alg":"HS256","crit":7}', '{"alg":"HS256","b64":false,"crit":["b64"]}', "null"),
)


def dated(claim: str, value: str) -> str:
    dates = {"exp": "4000000000", "nbf": "1", "iat": "1", claim: value}
    payload = ",".join(f'"{name}":{date}' for name, date in dates.items())
    return hand_signed(f'{{"sub":"operator",{payload}}}')


@pytest.mark.parametrize(
    ("token", "why"),
    [
        (signed({**OPERATOR, "exp": 1_000_000_000}), "it has expired"),
        (signed({**OPERATOR, "nbf": 32_000_000_000}), "not valid yet"),
        (signed({"role": "operator"}), "no 'sub'"),
        (signed({"sub": ""}), "no 'sub'"),
        (signed({"sub": 7}), "no 'sub'"),
        (signed({**OPERATOR, "exp": "soon"}), "malformed"),
        (hand_signed("{}", "[" * 3_000), "malformed"),
        (hand_signed("[" * 3_000), "malformed"),
        *((hand_signed('{"sub":"operator"}', header), "") for header in HEADERS),
        *(
            (dated(claim, value), "the token is refused")
            for claim in ("exp", "nbf", "iat")
            for value in (*HUGE, *ABSURD)
        ),
        *((token, "") for token in ("", "nonsense", "a.b.c", "ä.ö.ü", "x" * 10_000)),
        (unsigned(OPERATOR), ""),
        (signed(OPERATOR, secrets.token_bytes(32)), "not signed with the key"),
        (signed(OPERATOR)[:-2], ""),
    ],
    ids=lambda text: text if " " in text else "",  # tokens differ from worker to worker
)
def test_a_worthless_token_is_refused_unquoted(token: str, why: str, secret_file: Path) -> None:
    with pytest.raises(TokenRefused, match=why or None) as refused:
        Tokens.of_secret_file(secret_file).proven(token)
    assert not token or token not in str(refused.value)


@pytest.mark.parametrize("exp", ["4000000000", "4000000000.5", "4e9", "253402300799"])
def test_a_date_within_reason_is_taken(exp: str, secret_file: Path) -> None:
    token = hand_signed(f'{{"sub":"operator","exp":{exp},"nbf":0}}')
    assert Tokens.of_secret_file(secret_file).proven(token).until_s == float(exp) + 5.0


def test_a_public_key_is_never_taken_for_a_shared_secret(tmp_path: Path) -> None:
    key = rsa.generate_private_key(65537, 2048)
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "public.pem").write_bytes(public)
    # Signed by hand: the library refuses to be used so.
    token = hand_signed('{"sub":"operator"}', key=public)
    with pytest.raises(TokenRefused, match="not signed with the key"):
        Tokens.of_public_key_file(tmp_path / "public.pem").proven(token)


@pytest.mark.parametrize("encoding", [Encoding.PEM, Encoding.DER])
def test_public_keys_of_all_kinds_check_tokens(encoding: Encoding, tmp_path: Path) -> None:
    path = tmp_path / "public"
    keys: list[tuple[rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, str]] = [
        (rsa.generate_private_key(65537, 2048), "RS256"),
        (ec.generate_private_key(ec.SECP256R1()), "ES256"),
        (ec.generate_private_key(ec.SECP384R1()), "ES384"),
    ]
    for key, algorithm in keys:
        path.write_bytes(key.public_key().public_bytes(encoding, PublicFormat.SubjectPublicKeyInfo))
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        token = signed({"sub": "operator"}, private, algorithm)
        assert Tokens.of_public_key_file(path).proven(token).subject == "operator"


def test_the_name_may_stand_in_another_claim_and_the_audience_counts(secret_file: Path) -> None:
    tokens = Tokens.of_secret_file(secret_file, claim="role", audience="loadmanager")
    good = signed({"role": "operator", "aud": ["pulsar", "loadmanager"]})
    assert tokens.proven(good).subject == "operator"
    with pytest.raises(TokenRefused, match="another audience"):
        tokens.proven(signed({"role": "operator", "aud": "pulsar"}))
    with pytest.raises(TokenRefused, match="a claim is missing"):
        tokens.proven(signed({"role": "operator"}))


def test_key_files_that_hold_no_key_are_named(tmp_path: Path) -> None:
    path = tmp_path / "key"
    with pytest.raises(KeyUnusable, match=f"{path}: No such file"):
        Tokens.of_secret_file(path)
    path.write_bytes(b"short")
    with pytest.raises(KeyUnusable, match=f"{path}: 5 bytes; expected a secret of 32 or more"):
        Tokens.of_secret_file(path)
    for content in (b"-----BEGIN nonsense", b"\x30\x00", b""):
        path.write_bytes(content)
        with pytest.raises(KeyUnusable, match=f"{path}: expected a public key in PEM or DER"):
            Tokens.of_public_key_file(path)
    other = ed25519.Ed25519PrivateKey.generate().public_key()
    path.write_bytes(other.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(KeyUnusable, match="expected an RSA key"):
        Tokens.of_public_key_file(path)


def test_a_token_of_another_key_is_verified_once_and_displaces_no_good_one(
    secret_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified: list[str] = []
    decode = jwt.decode

    def counting(token: str, *args: Any, **kwargs: Any) -> Any:
        verified.append(token)
        return decode(token, *args, **kwargs)

    monkeypatch.setattr(jwt, "decode", counting)
    monkeypatch.setattr(module, "_MAX_REMEMBERED", 4)
    tokens = Tokens.of_secret_file(secret_file)
    good = signed({"sub": "operator"})
    foreign = signed({"sub": "operator"}, b"another secret, as long as it must be")
    assert tokens.proven(good).subject == "operator"
    for _ in range(3):
        with pytest.raises(TokenRefused, match="not signed with the key of this cluster"):
            tokens.proven(foreign)
    assert verified == [good, foreign]
    for number in range(20):
        with pytest.raises(TokenRefused):
            tokens.proven(signed({"sub": str(number)}, b"another secret, as long as it must be"))
    verified.clear()
    assert tokens.proven(good).subject == "operator"
    assert verified == []


def test_a_token_that_is_not_valid_yet_is_verified_again(secret_file: Path) -> None:
    tokens = Tokens.of_secret_file(secret_file, leeway_s=0.0)
    token = signed({"sub": "operator", "nbf": SystemClock().wall_ms() / 1000 + 60})
    with pytest.raises(TokenRefused, match="not valid yet"):
        tokens.proven(token)
    tokens._leeway_s = 120.0  # as if that time had passed
    assert tokens.proven(token).subject == "operator"
