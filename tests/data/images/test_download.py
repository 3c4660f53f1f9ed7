import gzip
import hashlib
import http.server
import threading

import pytest

from equipoise.data import DataNotFoundError, load
from equipoise.data.images import mnist
from equipoise.data.images.download import fetch_fashion_mnist
from support.idx_format import image_files

IMAGES, LABELS = (gzip.compress(content, mtime=0) for content in image_files())
FILES = {
    "train-images-idx3-ubyte.gz": IMAGES,
    "train-labels-idx1-ubyte.gz": LABELS,
    "t10k-images-idx3-ubyte.gz": IMAGES,
    "t10k-labels-idx1-ubyte.gz": LABELS,
}
MD5 = {name: hashlib.md5(content).hexdigest() for name, content in FILES.items()}


class Server:
    """Serves ``files`` on this machine and remembers what was asked for."""

    def __init__(self):
        self.files, self.asked, self.cut = dict(FILES), [], False
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                name = self.path.removeprefix("/")
                outer.asked.append(name)
                content = outer.files.get(name)
                if content is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[: len(content) // 2] if outer.cut else content)

            def log_message(self, *arguments):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server()
    yield server
    server.close()


def test_files_arrive_whole(server, tmp_path):
    folder = tmp_path / "deep" / "folder"
    fetch_fashion_mnist(folder, base_url=server.url, md5=MD5)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES


def test_files_that_are_there_are_kept(server, tmp_path):
    fetch_fashion_mnist(tmp_path, base_url=server.url, md5=MD5)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(b"damaged since")
    server.asked.clear()
    fetch_fashion_mnist(tmp_path, base_url=server.url, md5=MD5)
    assert server.asked == ["t10k-labels-idx1-ubyte.gz"]
    assert (tmp_path / "t10k-labels-idx1-ubyte.gz").read_bytes() == LABELS


def test_a_damaged_download_is_refused_and_not_kept(server, tmp_path):
    server.files["train-labels-idx1-ubyte.gz"] = b"something else"
    with pytest.raises(ValueError, match=r"train-labels.*is damaged: its MD5 sum is") as caught:
        fetch_fashion_mnist(tmp_path, base_url=server.url, md5=MD5)
    assert MD5["train-labels-idx1-ubyte.gz"] in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["train-images-idx3-ubyte.gz"]


def test_a_cut_connection_leaves_nothing(server, tmp_path):
    server.cut = True
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte.gz"):
        fetch_fashion_mnist(tmp_path, base_url=server.url, md5=MD5)
    assert not list(tmp_path.iterdir())


def test_an_older_file_survives_a_failed_download(server, tmp_path):
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(b"older")
    server.files.clear()
    with pytest.raises(DataNotFoundError, match=r"HTTP Error 404"):
        fetch_fashion_mnist(tmp_path, base_url=server.url, md5=MD5)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"older"]


def test_an_unreachable_server_is_named(server, tmp_path):
    server.close()
    with pytest.raises(DataNotFoundError, match=rf"{server.url}.*could not be downloaded"):
        fetch_fashion_mnist(tmp_path, base_url=server.url, md5=MD5)
    server.__init__()


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataNotFoundError, match="EQUIPOISE_CACHE"):
        fetch_fashion_mnist(tmp_path / "file" / "folder", base_url="http://127.0.0.1:9/")


def test_load_downloads_only_when_allowed(server, tmp_path, monkeypatch):
    """First it is nowhere, then fetched into the cache, then found there."""

    def fetch(folder):
        fetch_fashion_mnist(folder, base_url=server.url, md5=MD5)

    read = mnist.fashion_mnist_images
    nowhere = {**read.__kwdefaults__, "debian": tmp_path / "nowhere"}
    monkeypatch.setattr(read, "__kwdefaults__", nowhere)
    monkeypatch.setattr(mnist, "fetch_fashion_mnist", fetch)
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DataNotFoundError) as caught:
        load("fashion-mnist")
    message = str(caught.value)
    for part in ("apt install dataset-fashion-mnist", "download=True", "data_dir=", "nowhere"):
        assert part in message
    assert "\n" not in message
    assert not server.asked

    assert len(load("fashion-mnist", download=True)) == 6
    assert len(server.asked) == 4
    assert len(load("fashion-mnist")) == 6
    assert len(server.asked) == 4
