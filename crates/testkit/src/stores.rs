//! Object stores on the loopback interface: versitygw for S3, Azurite for Azure, a fake of our own for Google, each started once a run.
//!
//! `scripts/object-stores` installs the servers. The fake is of each process.

use crate::{fake_gcs, shared};
use fullbore_storage::{CloudAddress, CloudEnvironment, CloudObjects, CloudSettings};
use std::{
    fs,
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

pub const BUCKET: &str = "vault";
pub const SECRET: &str = "hunter2hunter2hunter2";
pub const OTHER_KEY: &str = "offsite";
pub const OTHER_SECRET: &str = "abcabcabcabcabcabcabc";
pub const AZURE_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// A server, and the directory that it has its objects in.
pub struct Server {
    pub port: u16,
    pub dir: PathBuf,
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

/// A server that listens on a free port.
fn server(
    name: &str,
    program: &Path,
    arguments: impl Fn(u16, &Path) -> Vec<String>,
    prepare: impl Fn(u16),
) -> Server {
    let said = shared::once(name, || {
        let server = start(program, arguments);
        prepare(server.port);
        format!("{} {}", server.port, server.dir.display())
    });
    let (port, dir) = said.split_once(' ').unwrap();
    Server {
        port: port.parse().unwrap(),
        dir: dir.into(),
    }
}

fn start(program: &Path, arguments: impl Fn(u16, &Path) -> Vec<String>) -> Server {
    // On the disk: one of the servers needs extended attributes, which not every file system in memory has.
    let dir = tempfile::Builder::new()
        .prefix("fullbore-store")
        .tempdir_in("/var/tmp")
        .unwrap()
        .keep();
    let port = free_port();
    shared::start(program, &arguments(port, &dir), &dir);
    let server = Server { port, dir };
    let began = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(
            began.elapsed() < Duration::from_secs(120),
            "{program:?} does not listen: {}",
            log_of(&server)
        );
        thread::sleep(Duration::from_millis(20));
    }
    server
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

pub fn s3_server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| start_s3("versitygw", "tester", SECRET))
}

/// A second store, which knows other credentials.
pub fn other_s3_server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| start_s3("versitygw-other", OTHER_KEY, OTHER_SECRET))
}

fn start_s3(name: &str, key: &str, secret: &str) -> Server {
    let arguments = |port, dir: &Path| {
        fs::create_dir_all(dir.join("root").join(BUCKET)).unwrap();
        let root = dir.join("root").display().to_string();
        words(&format!(
            "--port 127.0.0.1:{port} --access {key} --secret {secret} --keep-alive --quiet posix {root}"
        ))
    };
    server(name, &installed("bin/versitygw"), arguments, |_| ())
}

/// Writes a file of AWS's own tools in which the profile `offsite` has the credentials of the second store.
pub fn write_other_profile(dir: &Path) -> PathBuf {
    let file = dir.join("credentials");
    let text = format!(
        "[offsite]\naws_access_key_id = {OTHER_KEY}\naws_secret_access_key = {OTHER_SECRET}\n"
    );
    fs::write(&file, text).unwrap();
    file
}

fn azure_server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| {
        let arguments = |port, _: &Path| {
            words(&format!(
                "--blobHost 127.0.0.1 --blobPort {port} --inMemoryPersistence --skipApiVersionCheck --silent --disableTelemetry"
            ))
        };
        server("azurite-blob", &installed("azurite/node_modules/.bin/azurite-blob"), arguments, make_container)
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
pub fn own_prefix() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("t/{}-{}", std::process::id(), NUMBER.fetch_add(1, Relaxed))
}

fn variables(pairs: &[(&str, &str)]) -> CloudEnvironment {
    CloudEnvironment::of(
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
    )
}

/// Settings for tests: pauses are short, and a lease is soon known to be dead.
pub fn settings(endpoint: &str) -> CloudSettings {
    let mut settings = CloudSettings {
        endpoint: Some(endpoint.to_owned()),
        renewal: Some(Duration::from_millis(800)),
        ..CloudSettings::default()
    };
    settings.retries.first_pause = Duration::from_millis(2);
    settings.retries.longest_pause = Duration::from_millis(50);
    settings
}

pub fn s3_environment() -> CloudEnvironment {
    variables(&[
        ("AWS_ACCESS_KEY_ID", "tester"),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
    ])
}

pub fn s3_address() -> CloudAddress {
    CloudAddress::parse(&format!("s3://{BUCKET}/{}", own_prefix()))
        .unwrap()
        .unwrap()
}

pub fn s3_endpoint() -> String {
    format!("http://127.0.0.1:{}", s3_server().port)
}

pub fn in_s3() -> CloudObjects {
    CloudObjects::open(&s3_address(), &settings(&s3_endpoint()), &s3_environment()).unwrap()
}

pub fn azure_endpoint() -> String {
    format!("http://127.0.0.1:{}/devstoreaccount1", azure_server().port)
}

pub fn gcs_endpoint() -> String {
    format!("http://127.0.0.1:{}", gcs_port())
}

/// An account that asks for no token.
pub const GCS_ACCOUNT: &str =
    r#"{"private_key": "", "private_key_id": "", "client_email": "", "disable_oauth": true}"#;

pub fn in_azure() -> CloudObjects {
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

pub fn in_gcs() -> CloudObjects {
    let endpoint = gcs_endpoint();
    let address = CloudAddress::parse(&format!("gs://{BUCKET}/{}", own_prefix()))
        .unwrap()
        .unwrap();
    let environment = variables(&[("GOOGLE_SERVICE_ACCOUNT_KEY", GCS_ACCOUNT)]);
    CloudObjects::open(&address, &settings(&endpoint), &environment).unwrap()
}

/// The log of a server, for a test that fails.
pub fn log_of(server: &Server) -> String {
    fs::read_to_string(format!("{}.log", server.dir.display())).unwrap_or_default()
}
