//! What the pages say, and what comes out of downloads.

use serde_json::Value;
use std::{collections::BTreeSet, fs, path::Path};
use tempfile::{TempDir, tempdir};
use testkit::{
    growth::Growth,
    runs::{
        assert_same, fullbore, has, noise, or_skip, sample, shape, shell, write, write_private,
    },
    web::{Session, encoded},
};

fn backup(dir: &Path) {
    fullbore(args!["backup", dir.join("t"), "--to", dir.join("r"), "-q"]).ends_with(0);
}

/// Two backups of a tree.
fn two_backups() -> TempDir {
    let dir = tempdir().unwrap();
    sample(&dir.path().join("t"));
    write(dir.path().join("t/dir one/notes.txt"), "first\n");
    backup(dir.path());
    write(dir.path().join("t/dir one/notes.txt"), "second <b>\n");
    backup(dir.path());
    dir
}

#[test]
fn each_page_has_its_json_and_says_what_the_commands_say() {
    let dir = two_backups();
    let repository = dir.path().join("r");
    let session = Session::of(&repository);
    let (backup, source) = session.newest();
    let listed = fullbore(args!["list", &repository, "--json"]).json();
    let shown = session.api(&format!("source?r=0&s={source}"));
    assert_eq!(shown["backups"].as_array().unwrap().len(), 2);
    for (listed, shown) in listed
        .iter()
        .rev()
        .zip(shown["backups"].as_array().unwrap())
    {
        for key in [
            "id",
            "time",
            "end_time",
            "entries",
            "files",
            "bytes",
            "stored_bytes",
            "complete",
            "pinned",
            "tags",
        ] {
            assert_eq!(listed[key], shown[key], "{key}");
        }
    }
    let first = listed[0]["id"].as_str().unwrap();
    let diff = fullbore(args!["diff", &repository, first, &backup, "--json"]).json();
    let shown = session.api(&format!("diff?r=0&a={first}&b={backup}"));
    assert_eq!(Some(&shown["result"]), diff.last());
    assert_eq!(
        shown["differences"].as_array().unwrap()[..],
        diff[..diff.len() - 1]
    );
    let found = fullbore(args!["find", &repository, "/dir one/notes.txt", "--json"]).json();
    let shown = session.api(&format!("versions?r=0&b={backup}&d=dir+one/notes.txt"));
    let versions: Vec<_> = shown["versions"].as_array().unwrap().iter().rev().collect();
    assert_eq!(versions, found.iter().collect::<Vec<_>>());
    assert_eq!(found.len(), 2);
    let forgotten = fullbore(args![
        "forget",
        &repository,
        "--keep-last",
        "1",
        "-n",
        "--json"
    ])
    .json();
    let shown = session.api(&format!("retention?r=0&s={source}&keep-last=1"));
    assert_eq!(
        (&shown["kept"], &shown["forgotten"]),
        (&1.into(), &1.into())
    );
    let lines: Vec<_> = shown["backups"].as_array().unwrap().iter().rev().collect();
    assert_eq!(lines, forgotten.iter().collect::<Vec<_>>());
    let plan = session.api(&format!("restore?r=0&b={backup}"));
    assert_eq!(plan["plan"]["id"], *backup);
    assert_eq!(plan["allowed"], false);
    for page in [
        "",
        "runs?r=0",
        "checks?r=0",
        "postgres?r=0",
        &format!("backup?r=0&b={backup}"),
    ] {
        let html = session.get(page).is(200).text();
        assert!(
            html.starts_with("<!DOCTYPE html><html lang=\"en\">"),
            "{html}"
        );
        assert!(html.contains("<main id=\"main\"") && html.contains("href=\"#main\""));
    }
    let text = session
        .get(&format!("file?r=0&b={backup}&d=dir+one/notes.txt"))
        .is(200);
    assert!(text.text().contains("second &lt;b&gt;"));
}

#[test]
fn files_and_directories_come_out_as_they_went_in() {
    let dir = two_backups();
    let tree = dir.path().join("t");
    write(tree.join("large"), noise(3, 5 << 20));
    backup(dir.path());
    let session = Session::of(&dir.path().join("r"));
    let (backup, _) = session.newest();
    let large = session.get(&format!("get?r=0&b={backup}&d=large")).is(200);
    assert!(large.is_whole && large.body == fs::read(tree.join("large")).unwrap());
    let tar = session.get(&format!("tar?r=0&b={backup}")).is(200);
    assert!(tar.is_whole);
    let (packed, out) = (dir.path().join("x.tar.zst"), dir.path().join("out"));
    write(&packed, &tar.body);
    fs::create_dir(&out).unwrap();
    shell(
        "zstd -dc \"$1\" | tar -xp -C \"$2\" --xattrs --xattrs-include='*' --acls",
        args![packed, out],
    )
    .ends_with(0);
    assert_same(&shape(&tree), &shape(&out), "tar.zst");
    let only = session
        .get(&format!("tar?r=0&b={backup}&d={}", encoded(b"dir one")))
        .is(200);
    write(&packed, &only.body);
    let names = shell("zstd -dc \"$1\" | tar -t", args![packed])
        .ends_with(0)
        .out;
    assert!(
        names
            .lines()
            .all(|name| name == "./" || name.trim_start_matches("./").starts_with("dir one")),
        "{names}"
    );
}

#[test]
fn a_zip_is_read_by_other_programs() {
    let dir = tempdir().unwrap();
    let tree = dir.path().join("t");
    write(tree.join("a/large"), noise(3, 3 << 20));
    write(tree.join("a/empty"), "");
    write(tree.join("grün.txt"), "text\n".repeat(10_000));
    fs::hard_link(tree.join("a/large"), tree.join("a/other name")).unwrap();
    std::os::unix::fs::symlink("large", tree.join("a/link")).unwrap();
    backup(dir.path());
    let session = Session::of(&dir.path().join("r"));
    let (backup, _) = session.newest();
    let zip = session.get(&format!("zip?r=0&b={backup}")).is(200);
    assert!(zip.is_whole);
    let (packed, out) = (dir.path().join("x.zip"), dir.path().join("out"));
    write(&packed, &zip.body);
    if or_skip(has("bsdtar"), "there is no bsdtar") {
        fs::create_dir(&out).unwrap();
        shell(
            "LC_ALL=C.UTF-8 bsdtar -xf \"$1\" -C \"$2\"",
            args![packed, out],
        )
        .ends_with(0);
        for name in ["a/large", "a/empty", "grün.txt", "a/other name", "a/link"] {
            assert!(
                fs::read(tree.join(name)).unwrap() == fs::read(out.join(name)).unwrap(),
                "{name}"
            );
        }
    }
    let test = "import sys, zipfile; z = zipfile.ZipFile(sys.argv[1]); assert z.testzip() is None; print(len(z.infolist()))";
    let listed = shell("python3 -c \"$1\" \"$2\"", args![test, packed]).ends_with(0);
    assert_eq!(listed.out.trim(), "6");
}

#[test]
fn a_large_directory_is_shown_page_by_page_and_searched() {
    let dir = tempdir().unwrap();
    let names: BTreeSet<String> = (0..1234)
        .map(|number| format!("file {number:04}"))
        .collect();
    for name in &names {
        write(dir.path().join("t/many").join(name), name);
    }
    write(dir.path().join("t/many/sub/deeper/FILE 0007"), "x");
    backup(dir.path());
    let session = Session::of(&dir.path().join("r"));
    let (backup, _) = session.newest();
    let collect = |page: &str, field: &str| {
        let mut found: Vec<String> = Vec::new();
        let mut next = Value::Null;
        let mut pages = 0;
        loop {
            let more = match &next {
                Value::Null => String::new(),
                Value::String(text) => format!("&{field}={text}"),
                number => format!("&{field}={number}"),
            };
            let view = session.api(&format!("{page}{more}"));
            let entries = view["entries"].as_array().unwrap();
            found.extend(
                entries
                    .iter()
                    .map(|entry| entry["path"].as_str().unwrap().to_owned()),
            );
            pages += 1;
            next = view["next"].clone();
            if next.is_null() {
                return (found, pages);
            }
        }
    };
    let (found, pages) = collect(&format!("backup?r=0&b={backup}&d=many"), "after");
    assert_eq!(pages, 3);
    let mut wanted: BTreeSet<_> = names.iter().map(|name| format!("many/{name}")).collect();
    wanted.insert("many/sub".to_owned());
    assert_eq!(found.len(), wanted.len());
    assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), wanted);
    let (found, pages) = collect(&format!("search?r=0&b={backup}&q=FILE+0"), "at");
    assert_eq!((found.len(), pages), (1001, 6));
    let (found, _) = collect(&format!("search?r=0&b={backup}&d=many/sub&q=file"), "at");
    assert_eq!(found, ["many/sub/deeper/FILE 0007"]);
    session.get(&format!("search?r=0&b={backup}")).is(400);
}

#[test]
fn an_encrypted_repository_is_shown_with_its_passphrase() {
    let dir = tempdir().unwrap();
    write(dir.path().join("t/a"), "secret words");
    let (repository, secret) = (dir.path().join("r"), dir.path().join("secret"));
    write_private(&secret, "long words of a passphrase\n");
    fullbore(args![
        "backup",
        dir.path().join("t"),
        "--to",
        &repository,
        "--passphrase",
        "--passphrase-file",
        &secret,
        "-q"
    ])
    .ends_with(0);
    let session = Session::start(args![&repository, "--passphrase-file", &secret]);
    let (backup, source) = session.newest();
    assert_eq!(
        session.get(&format!("get?r=0&b={backup}&d=a")).is(200).body,
        b"secret words"
    );
    assert!(session.get(&format!("tar?r=0&b={backup}")).is(200).is_whole);
    session.api(&format!("retention?r=0&s={source}&keep-last=1"));
    session.api(&format!("versions?r=0&b={backup}&d=a"));
}

#[test]
fn trouble_comes_first_and_new_backups_are_seen() {
    let dir = two_backups();
    let other = tempdir().unwrap();
    write(other.path().join("t/a"), "x");
    backup(other.path());
    let session = Session::start(args![dir.path().join("r"), other.path().join("r")]);
    let fleet = session.api("fleet");
    assert_eq!(fleet["repositories"].as_array().unwrap().len(), 2);
    let sources = fleet["sources"].as_array().unwrap();
    assert_eq!(sources.len(), 2);
    let own = format!(":{}", other.path().join("t").display());
    let found = sources
        .iter()
        .find(|source| source["source_text"].as_str().unwrap().ends_with(&own));
    assert_eq!(found.unwrap()["r"], 1);
    assert!(sources.iter().all(|source| source["state"] == "sound"));
}

#[test]
fn the_fleet_page_says_what_the_command_says() {
    let dir = two_backups();
    let other = tempdir().unwrap();
    for host in ["web", "db"] {
        write(other.path().join("t/a"), host);
        let words = args![
            "backup",
            other.path().join("t"),
            "--to",
            other.path().join("r"),
            "--host",
            host,
            "--every",
            "1d",
            "-q"
        ];
        fullbore(words).ends_with(0);
    }
    let repositories = [dir.path().join("r"), other.path().join("r")];
    let damaged = fs::read_dir(repositories[0].join("backups")).unwrap();
    let mut damaged: Vec<_> = damaged.map(|entry| entry.unwrap().path()).collect();
    damaged.sort();
    let segment = damaged[0].join("s01-000001.tar.zst");
    let mut bytes = fs::read(&segment).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&segment, bytes).unwrap();
    fullbore(args!["verify", &repositories[0], "--data"]).ends_with(4);
    let listed = fullbore(args!["list", &repositories[1], "--json"]).json();
    let id = listed[1]["id"].as_str().unwrap();
    let place = format!("{}@{id}", repositories[1].display());
    fullbore(args!["tag", place, "every=7d"]).ends_with(0);
    let session = Session::start(args![&repositories[0], &repositories[1]]);
    let mut shown = session.api("fleet");
    let mut lines = fullbore(args!["fleet", &repositories[0], &repositories[1], "--json"])
        .ends_with(4)
        .json();
    let result = lines.pop().unwrap();
    assert_eq!(result["damaged_sources"], 1);
    for key in [
        "late_sources",
        "damaged_sources",
        "warned_sources",
        "exit_code",
    ] {
        assert_eq!(shown[key], result[key], "{key}");
    }
    let mut take = |list: &str| shown[list].as_array_mut().map(std::mem::take).unwrap();
    let pages = [take("repositories"), take("sources")].concat();
    assert_eq!(pages.len(), lines.len());
    for (mut page, mut line) in pages.into_iter().zip(lines) {
        // Where the pages of the source are.
        for key in ["r", "s"] {
            page.as_object_mut().unwrap().remove(key);
        }
        line.as_object_mut().unwrap().remove("type");
        for key in ["age_seconds", "verified_age_seconds"] {
            let age = |value: &Value| value.get(key).map(|age| age.as_u64().unwrap());
            let ages = (age(&page), age(&line));
            assert_eq!(ages.0.is_some(), ages.1.is_some(), "{key}");
            assert!(ages.0.unwrap_or(0).abs_diff(ages.1.unwrap_or(0)) < 60);
            page.as_object_mut().unwrap().remove(key);
            line.as_object_mut().unwrap().remove(key);
        }
        assert_eq!(page, line);
    }
    assert!(session.get("").is(200).text().contains(" damaged</span>"));
}

#[test]
fn very_many_backups_take_a_few_bytes_each() {
    let dir = tempdir().unwrap();
    let most_memory = |rounds: usize| {
        let repository = dir.path().join(rounds.to_string());
        let growth = Growth {
            sources: 50,
            rounds,
            files: 10,
            changed_one_of: 10,
        };
        growth.write(&mut |key, bytes| write(repository.join(key), bytes));
        let session = Session::of(&repository);
        let fleet = session.api("fleet");
        assert_eq!(fleet["repositories"][0]["backups"], rounds * 50);
        assert_eq!(fleet["sources"][7]["backups"], rounds);
        let source = fleet["sources"][7]["s"].as_str().unwrap();
        let shown = session.api(&format!("source?r=0&s={source}"));
        assert_eq!(shown["sizes"].as_array().unwrap().len(), rounds);
        let runs = session.api(&format!("runs?r=0&first={}", rounds * 50 - 5));
        assert_eq!(runs["runs"].as_array().unwrap().len(), 5);
        let status = format!("/proc/{}/status", session.server.child.id());
        let status = fs::read_to_string(status).unwrap();
        let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let most = most.unwrap().trim().trim_end_matches(" kB");
        most.parse::<usize>().unwrap() << 10
    };
    let (few, many) = (most_memory(4), most_memory(64));
    // 3,000 more of them. A list of objects is in memory while it is read.
    let each = many.saturating_sub(few) / 3000;
    assert!(each < 1500, "{each} bytes a backup");
}

#[test]
fn repositories_of_profiles_are_reached_with_their_own_options() {
    let dir = tempdir().unwrap();
    let configs = dir.path().join("config");
    for name in ["one", "two"] {
        let dir = dir.path().join(name);
        write(dir.join("t/a"), name);
        let secret = dir.join("secret");
        write_private(&secret, format!("long words of {name}\n"));
        let words = args![
            "backup",
            dir.join("t"),
            "--to",
            dir.join("r"),
            "--passphrase",
            "--passphrase-file",
            &secret,
            "-q"
        ];
        fullbore(words).ends_with(0);
        let profile = format!(
            "repository = {:?}\npassphrase-file = {:?}\n",
            dir.join("r"),
            secret
        );
        write(configs.join(format!("fullbore/{name}.toml")), profile);
    }
    let session = Session::start_in(
        args!["--profiles", "one,two"],
        &[("XDG_CONFIG_HOME", &configs)],
    );
    let fleet = session.api("fleet");
    let sources = fleet["sources"].as_array().unwrap();
    assert_eq!(sources.len(), 2, "{fleet}");
    for source in sources {
        let backup = source["newest_id"].as_str().unwrap();
        let r = source["r"].as_u64().unwrap();
        let file = session.get(&format!("get?r={r}&b={backup}&d=a")).is(200);
        let name = ["one", "two"][r as usize];
        assert_eq!(file.text(), name);
        // A command gets the options of that profile, too.
        session.api(&format!("restore?r={r}&b={backup}"));
    }
}
