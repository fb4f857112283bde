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

#[test]
fn an_enrolled_host_without_a_backup_is_told_with_a_key() {
    let world = World::new();
    let me = world.person("me");
    let repository = world.repository();
    world.init(&repository, &me);
    world.backup(&repository, &me);
    let fleet = || world.run_as(&me, args!["fleet", repository]);
    fleet().ends_with(0);
    let add = |more: &[&str]| {
        let words = args!["host", "add", repository, "web1", "--source", "/srv"];
        let more = more.iter().map(std::ffi::OsString::from);
        world.run_as(&me, words.into_iter().chain(more))
    };
    for (refused, why) in [
        (
            &["--at", "disk/backups"][..],
            "neither an absolute path nor a URL",
        ),
        (&["--ssh-key", "nonsense"], "not a public key of ssh"),
        (
            &["--ssh-key", "ssh-ed25519 AAAA\" x"],
            "not a public key of ssh",
        ),
    ] {
        let ran = add(refused).ends_with(2);
        assert!(ran.err.contains(why), "{}", ran.err);
    }
    fleet().ends_with(0);
    let host = world.person("host");
    let added = add(&["--for", &host.recipient, "--at", "/srv/repo"]).ends_with(0);
    // Its key is with the host.
    assert!(
        added.out.contains("\nkey = \"/etc/fullbore/web1.key\"\n"),
        "{}",
        added.out
    );
    assert!(!added.out.contains("It holds secrets"), "{}", added.out);
    assert!(
        added.out.contains("echo \"put the key of web1 into"),
        "{}",
        added.out
    );
    let told = fleet().ends_with(1);
    assert!(
        told.out.contains("never: no backup of web1,"),
        "{}",
        told.out
    );
    let without_key = world.run(args!["fleet", repository]).ends_with(0);
    assert!(
        without_key.out.contains("and hosts without a backup"),
        "{}",
        without_key.out
    );
    let lines = world
        .run_as(&me, args!["fleet", repository, "--json"])
        .ends_with(1)
        .json();
    assert_eq!(
        lines[0]["hosts_without_backup"],
        serde_json::json!(["web1"])
    );
    // Also as another host, its key has added one.
    let backup = args![
        "backup",
        world.tree(),
        "--to",
        repository,
        "--host",
        "web9",
        "-q"
    ];
    world.run_as(&host, backup).ends_with(0);
    fleet().ends_with(0);
    let remove = args!["host", "remove", repository, "web1"];
    let removed = world.run_as(&me, remove).ends_with(0);
    assert!(
        removed
            .out
            .contains("`fullbore key remove COPY --name web1`"),
        "{}",
        removed.out
    );
}

#[test]
fn clear_and_encrypted_repositories_are_looked_at_together_with_a_key() {
    let world = World::new();
    let me = world.person("me");
    let (sealed, clear, other) = (world.repository(), world.path("clear"), world.path("other"));
    world.init(&sealed, &me);
    world.backup(&sealed, &me);
    for repository in [&clear, &other] {
        world.backup(repository, &world.without_key());
    }
    let both = world
        .run_as(&me, args!["fleet", clear, sealed])
        .ends_with(0);
    assert!(both.out.contains("2 sources"), "{}", both.out);
    let note = format!("note: {:?} is not encrypted", clear.to_str().unwrap());
    assert!(both.err.contains(&note), "{}", both.err);
    // Sources of one name are told apart by their repositories.
    for repository in [&clear, &sealed] {
        let place = format!("\n  in {:?}\n", repository.to_str().unwrap());
        assert!(both.out.contains(&place), "{}", both.out);
    }
    // A key that opens none of them is a mistake, or each of them was replaced.
    let none = world.run_as(&me, args!["fleet", clear, other]).ends_with(2);
    assert!(
        none.err
            .contains("none of the repositories of this command is encrypted"),
        "{}",
        none.err
    );
    let alone = world.run_as(&me, args!["fleet", clear]).ends_with(1);
    assert!(alone.err.contains("cannot use a key"), "{}", alone.err);
    // What this host knows as encrypted is not looked at in the clear.
    fs::rename(&sealed, world.path("moved")).unwrap();
    fs::rename(&other, &sealed).unwrap();
    let replaced = world.run_as(&me, args!["fleet", clear, sealed]);
    assert_ne!(replaced.code, 0, "{}", replaced.out);
}
