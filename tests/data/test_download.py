import gzip
import hashlib
import http.server
import threading

import pytest

from equipoise.data import DataNotFoundError, cache_dir, fetch_fashion_mnist, load
from equipoise.data import download as download_module
from equipoise.data import mnist as mnist_module
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


def test_what_is_there_is_not_fetched_again(server, tmp_path):
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


def test_an_impossible_folder_names_the_remedy(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataNotFoundError, match="EQUIPOISE_CACHE"):
        fetch_fashion_mnist(tmp_path / "file" / "folder", base_url="http://127.0.0.1:9/")


def test_load_downloads_only_when_allowed(server, tmp_path, monkeypatch):
    """The whole way: nowhere, then fetched into the cache, then found there."""

    def fetch(folder):
        download_module.fetch_fashion_mnist(folder, base_url=server.url, md5=MD5)

    nowhere = {**mnist_module.fashion_mnist.__kwdefaults__, "debian": tmp_path / "nowhere"}
    monkeypatch.setattr(mnist_module.fashion_mnist, "__kwdefaults__", nowhere)
    monkeypatch.setattr(mnist_module, "fetch_fashion_mnist", fetch)
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DataNotFoundError) as caught:
        load("fashion-mnist")
    message = str(caught.value)
    for part in ("apt install dataset-fashion-mnist", "--download", "--data-dir", "nowhere"):
        assert part in message
    assert "\n" not in message
    assert not server.asked

    assert len(load("fashion-mnist", download=True)) == 6
    assert len(server.asked) == 4
    assert len(load("fashion-mnist")) == 6
    assert len(server.asked) == 4


class TestCacheDir:
    def test_own_variable_first(self, monkeypatch, tmp_path):
        monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "own"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert cache_dir() == tmp_path / "own"

    def test_then_the_desktop_standard(self, monkeypatch, tmp_path):
        monkeypatch.delenv("EQUIPOISE_CACHE", raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert cache_dir() == tmp_path / "xdg" / "equipoise"

    def test_then_home(self, monkeypatch, tmp_path):
        monkeypatch.delenv("EQUIPOISE_CACHE", raising=False)
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setenv("HOME", str(tmp_path))
        assert cache_dir() == tmp_path / ".cache" / "equipoise"
