from pathlib import Path

import trustme


class Files:
    def __init__(self, folder: Path, kind: trustme.KeyType = trustme.KeyType.ECDSA) -> None:
        self._folder = folder
        self._kind = kind
        self.authority = trustme.CA()
        self.certificate = folder / "server.pem"
        self.key = folder / "server.key"
        self.authorities = folder / "authorities.pem"
        self.authority.cert_pem.write_to_path(str(self.authorities))
        self.issue()

    def issue(self) -> None:
        names = ("localhost", "127.0.0.1", "127.0.0.2")
        issued = self.authority.issue_cert(*names, key_type=self._kind)
        self.certificate.write_bytes(b"".join(one.bytes() for one in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(self.key))

    def client(self, name: str) -> tuple[Path, Path]:
        """Return the files of a client's certificate and key, with ``name`` as its common name."""
        issued = self.authority.issue_cert(f"{name}.example.com", common_name=name)
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        certificate.write_bytes(b"".join(one.bytes() for one in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(key))
        return certificate, key
