//! `fullbore host add` and `host remove`: one command lets a host add backups, and one ends it.

use super::{
    runs::{self, fullbore, has, or_skip, temp},
    world::World,
};
use std::{fs, path::Path, process::Command};

/// Runs a script of `host add` with another directory in place of /etc/fullbore.
fn set_up(script: &str, etc: &Path, world: &World) {
    let script = script.replace("/etc/fullbore", etc.to_str().unwrap());
    // The test starts no timer.
    let script = script.replace("/run/systemd/system", "/nowhere");
    let path = world.path("bin");
    fs::create_dir_all(&path).unwrap();
    let _ = std::os::unix::fs::symlink(runs::FULLBORE, path.join("fullbore"));
    let path = format!("{}:{}", path.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("sh");
    command.args(["-c", &script]).env("PATH", path);
    command.env("FULLBORE_STATE_DIR", world.path("host-state"));
    let ran: runs::Ran = command.output().unwrap().into();
    ran.ends_with(0);
}

#[test]
fn a_host_is_enrolled_by_one_script_and_its_key_ends_with_it() {
    let world = World::new();
    let me = world.person("me");
    let repository = world.repository();
    world.init(&repository, &me);
    let add = args![
        "host",
        "add",
        repository,
        "web1",
        "--at",
        repository,
        "--source",
        world.tree()
    ];
    let added = world.run_as(&me, add).ends_with(0);
    assert!(
        added.err.contains("key \"web1\" was added"),
        "{}",
        added.err
    );
    let etc = world.path("etc");
    set_up(&added.out, &etc, &world);
    let mode = |name: &str| {
        use std::os::unix::fs::PermissionsExt;
        etc.join(name).metadata().unwrap().permissions().mode() & 0o777
    };
    assert_eq!((mode("web1.key"), mode("web1.toml")), (0o600, 0o600));
    let profile = etc.join("web1.toml");
    let run = || world.run(args!["run", "--config", profile]);
    run().ends_with(0);
    let backups = || {
        let list = world
            .run_as(&me, args!["list", repository, "--json"])
            .ends_with(0);
        list.json().len()
    };
    assert_eq!(backups(), 1);
    let fleet = || {
        world
            .run_as(&me, args!["fleet", repository, "--json"])
            .ends_with(0)
            .json()
    };
    let source = fleet()
        .into_iter()
        .find(|line| line["type"] == "source")
        .unwrap();
    assert_eq!(source["source"]["host"], "web1");
    assert_eq!(
        (&source["expected_seconds"], &source["state"]),
        (&86_400.into(), &"sound".into())
    );
    // It adds, and reads nothing.
    let restored = world.path("stolen");
    world
        .run(args![
            "restore",
            repository,
            "--to",
            restored,
            "--key",
            etc.join("web1.key")
        ])
        .ends_with(1);
    world.assert_restores(&repository, &me, "the owner");
    let again = args![
        "host", "add", repository, "web1", "--at", repository, "--source", "/srv"
    ];
    let again = world.run_as(&me, again);
    assert!(again.code != 0 && again.out.is_empty(), "{}", again.out);
    let removed = world
        .run_as(&me, args!["host", "remove", repository, "web1"])
        .ends_with(0);
    for words in ["1 backup of web1 stay", "key rotate", "--host web1"] {
        assert!(removed.out.contains(words), "{words}: {}", removed.out);
    }
    run();
    assert_eq!(backups(), 1, "the removed key counts");
    let source = fleet()
        .into_iter()
        .find(|line| line["type"] == "source")
        .unwrap();
    assert!(source["expected_seconds"].is_null(), "{source}");
    world.assert_restores(&repository, &me, "after the removal");
    world
        .run_as(&me, args!["host", "remove", repository, "web2"])
        .ends_with(1);
}

#[test]
fn no_name_and_no_value_becomes_a_command_of_the_script() {
    let world = World::new();
    let me = world.person("me");
    let repository = world.repository();
    world.init(&repository, &me);
    for bad in ["a b", "$(x)", "../x", "", "a'b", ".x"] {
        let add = args!["host", "add", repository, bad, "--source", "/srv"];
        world.run_as(&me, add).ends_with(2);
    }
    for bad in ["/srv\nEND-OF-FILE\ntouch x", "srv", "--flag=x"] {
        let add = args!["host", "add", repository, "web1", format!("--source={bad}")];
        world.run_as(&me, add).ends_with(2);
    }
    let odd = "/srv/$(touch x)'\"\\`id`\u{7f51}END-OF-FILE";
    let other = world.person("host");
    let add = args![
        "host",
        "add",
        repository,
        "web1",
        "--for",
        other.recipient,
        "--source",
        odd,
        "--at",
        "s3://vault/x"
    ];
    let added = world.run_as(&me, add).ends_with(0);
    assert!(!added.out.contains("SECRET"), "{}", added.out);
    let etc = world.path("etc");
    set_up(&added.out, &etc, &world);
    let checked = world
        .run(args!["config", "check", "--config", etc.join("web1.toml")])
        .ends_with(0);
    assert!(
        checked.out.contains('\u{7f51}') && !world.path("x").exists(),
        "{}",
        checked.out
    );
    let profile = fs::read_to_string(etc.join("web1.toml")).unwrap();
    assert!(
        profile.contains("s3://vault/x") && profile.contains("expect-keys"),
        "{profile}"
    );
}

#[test]
fn a_certificate_of_an_authority_has_the_name_of_the_host() {
    if !or_skip(has("openssl"), "there is no openssl") {
        return;
    }
    let dir = temp();
    let at = |name: &str| dir.path().join(name);
    let openssl = |line: &str| {
        let mut command = Command::new("openssl");
        let ran: runs::Ran = command
            .args(line.split(' '))
            .current_dir(dir.path())
            .output()
            .unwrap()
            .into();
        ran.ends_with(0)
    };
    openssl(
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout ca.key -out ca.pem -subj /CN=backups",
    );
    fullbore(args!["init", at("repo")]).ends_with(0);
    let add = args![
        "host",
        "add",
        at("repo"),
        "web1",
        "--source",
        "/srv",
        "--at",
        "fullbore://vault:7070",
        "--ca",
        dir.path()
    ];
    let added = fullbore(add).ends_with(0);
    let file = |name: &str| {
        let begin = format!("cat >/etc/fullbore/{name} <<'END-OF-FILE'\n");
        let content = added.out.split_once(&begin).unwrap().1;
        content.split_once("END-OF-FILE").unwrap().0.to_owned()
    };
    fs::write(at("web1.pem"), file("web1.pem")).unwrap();
    assert!(file("web1-tls.key").contains("PRIVATE KEY"));
    assert_eq!(
        file("web1-ca.pem"),
        fs::read_to_string(at("ca.pem")).unwrap()
    );
    openssl("verify -purpose sslclient -CAfile ca.pem web1.pem");
    let subject = openssl("x509 -in web1.pem -noout -subject -ext subjectAltName").out;
    assert!(
        subject.contains("CN = web1") && subject.contains("DNS:web1"),
        "{subject}"
    );
    let missing = args![
        "host",
        "add",
        at("repo"),
        "web1",
        "--source",
        "/srv",
        "--ca",
        at("nothing")
    ];
    assert_eq!(fullbore(missing).ends_with(1).out, "");
    let useless = args![
        "host",
        "add",
        at("repo"),
        "web1",
        "--source",
        "/srv",
        "--for",
        "age1x"
    ];
    fullbore(useless).ends_with(2);
}
