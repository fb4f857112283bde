//! Object stores on the loopback interface: versitygw for S3, Azurite for Azure, a fake of our own for Google, each started once.
//!
//! `scripts/object-stores` installs the servers. Each ends with the process of the tests: a shell holds it, and waits for the end of its input.

use crate::fake_gcs;
use fullbore_storage::{CloudAddress, CloudEnvironment, CloudObjects, CloudSettings};
use std::{
    fs,
    io::Read as _,
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

pub(crate) const BUCKET: &str = "vault";
pub(crate) const SECRET: &str = "hunter2hunter2hunter2";
pub(crate) const AZURE_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// A server, and the directory that it has its objects in.
pub(crate) struct Server {
    pub(crate) port: u16,
    pub(crate) dir: tempfile::TempDir,
    _held: Child,
}

/// Where the servers were installed.
fn installed(name: &str) -> PathBuf {
    let ours = std::env::var_os("FULLBORE_OBJECT_STORES").map_or_else(
        || Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("target/object-stores"),
        PathBuf::from,
    );
    let path = ours.join(name);
    assert!(
        path.exists(),
        "{path:?} is not there: run scripts/object-stores"
    );
    path
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

/// Starts a server that listens on a free port; a shell ends it when the input of the shell ends.
fn start(program: &Path, arguments: impl Fn(u16, &Path) -> Vec<String>) -> Server {
    // On the disk: one of the servers needs extended attributes, which not every file system in memory has.
    let dir = tempfile::Builder::new()
        .prefix("fullbore-store")
        .tempdir_in("/var/tmp")
        .unwrap();
    let port = free_port();
    let script = r#"dir=$1; shift; exec 3<&0; "$@" >"$dir.log" 2>&1 & server=$!
(cat <&3 >/dev/null; kill $server 2>/dev/null) & wait $server; cat "$dir.log" >&2; rm -rf "$dir" "$dir.log""#;
    let mut held = Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(dir.path())
        .arg(program)
        .args(arguments(port, dir.path()))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let began = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(held.try_wait().unwrap().is_none(), "{program:?} ended");
        assert!(
            began.elapsed() < Duration::from_secs(120),
            "{program:?} does not listen"
        );
        thread::sleep(Duration::from_millis(20));
    }
    Server {
        port,
        dir,
        _held: held,
    }
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

pub(crate) fn s3_server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| {
        start(&installed("bin/versitygw"), |port, dir| {
            fs::create_dir_all(dir.join("root").join(BUCKET)).unwrap();
            let root = dir.join("root").display().to_string();
            words(&format!(
                "--port 127.0.0.1:{port} --access tester --secret {SECRET} --keep-alive --quiet posix {root}"
            ))
        })
    })
}

fn azure_server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| {
        let server = start(&installed("azurite/node_modules/.bin/azurite-blob"), |port, _| {
            words(&format!(
                "--blobHost 127.0.0.1 --blobPort {port} --inMemoryPersistence --skipApiVersionCheck --silent --disableTelemetry"
            ))
        });
        make_container(server.port);
        server
    })
}

/// Azurite makes a container only for a request that is signed.
fn make_container(port: u16) {
    let script = r#"
const [port, key, name] = process.argv.slice(1), account = "devstoreaccount1";
const date = new Date().toUTCString(), version = "2021-08-06", path = `/${account}/${name}`;
const text = ["PUT", "", "", "", "", "", "", "", "", "", "", "", `x-ms-date:${date}`, `x-ms-version:${version}`,
    `/${account}${path}`, "restype:container"].join("\n");
const signature = require("crypto").createHmac("sha256", Buffer.from(key, "base64")).update(text).digest("base64");
const headers = { "x-ms-date": date, "x-ms-version": version, "content-length": 0,
    authorization: `SharedKey ${account}:${signature}` };
const request = { host: "127.0.0.1", port, path: `${path}?restype=container`, method: "PUT", headers };
require("http").request(request, (answer) => process.exit(answer.statusCode === 201 ? 0 : 1)).end();
"#;
    let port = port.to_string();
    let made = Command::new("node")
        .args(["-e", script, &port, AZURE_KEY, BUCKET])
        .status()
        .unwrap();
    assert!(made.success(), "could not make a container");
}

fn gcs_port() -> u16 {
    static PORT: OnceLock<u16> = OnceLock::new();
    *PORT.get_or_init(fake_gcs::start)
}

/// A prefix that no other test has.
pub(crate) fn own_prefix() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("t/{}", NUMBER.fetch_add(1, Relaxed))
}

fn variables(pairs: &[(&str, &str)]) -> CloudEnvironment {
    CloudEnvironment::of(
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
    )
}

/// Settings for tests: pauses are short, and a lease is soon known to be dead.
pub(crate) fn settings(endpoint: &str) -> CloudSettings {
    let mut settings = CloudSettings {
        endpoint: Some(endpoint.to_owned()),
        renewal: Some(Duration::from_millis(800)),
        ..CloudSettings::default()
    };
    settings.retries.first_pause = Duration::from_millis(2);
    settings.retries.longest_pause = Duration::from_millis(50);
    settings
}

pub(crate) fn s3_environment() -> CloudEnvironment {
    variables(&[
        ("AWS_ACCESS_KEY_ID", "tester"),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
    ])
}

pub(crate) fn s3_address() -> CloudAddress {
    CloudAddress::parse(&format!("s3://{BUCKET}/{}", own_prefix()))
        .unwrap()
        .unwrap()
}

pub(crate) fn s3_endpoint() -> String {
    format!("http://127.0.0.1:{}", s3_server().port)
}

pub(crate) fn in_s3() -> CloudObjects {
    CloudObjects::open(&s3_address(), &settings(&s3_endpoint()), &s3_environment()).unwrap()
}

pub(crate) fn azure_endpoint() -> String {
    format!("http://127.0.0.1:{}/devstoreaccount1", azure_server().port)
}

pub(crate) fn gcs_endpoint() -> String {
    format!("http://127.0.0.1:{}", gcs_port())
}

/// An account that asks for no token.
pub(crate) const GCS_ACCOUNT: &str =
    r#"{"private_key": "", "private_key_id": "", "client_email": "", "disable_oauth": true}"#;

pub(crate) fn in_azure() -> CloudObjects {
    let endpoint = azure_endpoint();
    let address = CloudAddress::parse(&format!("az://{BUCKET}/{}", own_prefix()))
        .unwrap()
        .unwrap();
    let environment = variables(&[
        ("AZURE_STORAGE_ACCOUNT", "devstoreaccount1"),
        ("AZURE_STORAGE_KEY", AZURE_KEY),
    ]);
    CloudObjects::open(&address, &settings(&endpoint), &environment).unwrap()
}

pub(crate) fn in_gcs() -> CloudObjects {
    let endpoint = gcs_endpoint();
    let address = CloudAddress::parse(&format!("gs://{BUCKET}/{}", own_prefix()))
        .unwrap()
        .unwrap();
    let environment = variables(&[("GOOGLE_SERVICE_ACCOUNT_KEY", GCS_ACCOUNT)]);
    CloudObjects::open(&address, &settings(&endpoint), &environment).unwrap()
}

/// The log of a server, for a test that fails.
#[allow(dead_code, reason = "for whoever looks into a failure")]
pub(crate) fn log_of(server: &Server) -> String {
    let mut text = String::new();
    let path = format!("{}.log", server.dir.path().display());
    let _ = fs::File::open(path).and_then(|mut file| file.read_to_string(&mut text));
    text
}
