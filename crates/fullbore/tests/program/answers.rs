//! Mistakes and habits that cost people minutes: each is answered with the words to type, or with what is so.

use crate::runs::{
    self, Ran, args, fullbore, is_root, or_skip, set_mtime, shell, started, temp, write,
};
use std::{
    ffi::OsString, fs, io::Write, os::unix::fs::MetadataExt, path::PathBuf, thread, time::Duration,
};

/// A directory with a tree and a repository that has one backup of it.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { dir: temp() };
        write(place.path("src/a.txt"), "a");
        write(place.path("src/sub/letter.txt"), "dear");
        place.back_up("src", &[]);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn back_up(&self, source: &str, more: &[&str]) {
        let words = args!["backup", self.path(source), "--to", self.path("r"), "-q"];
        fullbore(words.into_iter().chain(args(more))).ends_with(0);
    }

    /// Runs words in the directory.
    fn run(&self, line: &str) -> Ran {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        runs::command(words)
            .current_dir(self.dir.path())
            .output()
            .unwrap()
            .into()
    }

    fn ids(&self) -> Vec<String> {
        let list = fullbore(args!["list", self.path("r"), "--json"]).ends_with(0);
        let ids = list.json().into_iter();
        ids.map(|line| line["id"].as_str().unwrap().to_owned())
            .collect()
    }
}

#[track_caller]
fn assert_said(ran: &Ran, code: i32, words: &[&str]) {
    assert_eq!(ran.code, code, "{}", ran.err);
    for word in words {
        assert!(ran.err.contains(word), "{word}: {}", ran.err);
    }
}

#[test]
fn words_of_restic_and_borg_are_answered_with_ours() {
    let place = Place::new();
    for (line, code, words) in [
        ("list r::latest", 1, &["write \"r@latest\""][..]),
        ("backup src --to r::x", 2, &["write \"r@x\""]),
        (
            "list host::module",
            1,
            &["\"host@module\"", "ssh://HOST/PATH"],
        ),
        (
            "restore r@latest:sub/letter.txt --to o",
            1,
            &["`fullbore restore REPO@latest sub/letter.txt --to DIR`"],
        ),
        (
            "backup src --to r --tag nightly,web",
            2,
            &["--tag nightly --tag web"],
        ),
        ("list r --tag nightly,web", 2, &["--tag nightly --tag web"]),
        ("forget r --keep-tag a,b -n", 2, &["--tag a --tag b"]),
        ("list", 2, &["-r REPO or FULLBORE_REPOSITORY"]),
    ] {
        assert_said(&place.run(line), code, words);
    }
    // A comma in a value is a part of it.
    place.back_up("src", &["--tag", "for=a,b"]);
    assert_eq!(place.ids().len(), 2);
}

#[test]
fn m_is_neither_months_nor_minutes_behind_an_at() {
    let place = Place::new();
    let unclear = place.run("restore r@5m --to o");
    assert_said(&unclear, 2, &["minutes or months", "write @5min or @5mo"]);
    assert_said(&place.run("restore r@1y5m --to o"), 2, &["write @1y5mo"]);
    for word in ["5mo", "1y5mo2d", "5min"] {
        let ran = place.run(&format!("restore r@{word} --to o"));
        assert_said(&ran, 1, &["or before", "the oldest is"]);
    }
    // The one of now began 0 minutes ago or before.
    place.run("restore r@0min --to o").ends_with(0);
}

#[test]
fn a_text_is_no_archive_whatever_its_length() {
    let place = Place::new();
    for (name, lines) in [("note", 1), ("letter", 20), ("book", 200)] {
        write(place.path(name), "dear aunt\n".repeat(lines));
        for verb in ["list", "verify"] {
            let ran = place.run(&format!("{verb} {name}"));
            assert_said(&ran, 1, &["it is not a tar", "REPO@latest PATH"]);
        }
    }
    // What may be the begin of one is damage.
    let line = "tar -C \"$1\" -c src | head -c 300 > \"$1/cut\"";
    shell(line, args![place.dir.path()]).ends_with(0);
    assert_said(&place.run("list cut"), 4, &["cut off"]);
}

#[test]
fn a_path_that_is_gone_is_found_in_the_backup_that_has_it() {
    let place = Place::new();
    fs::remove_file(place.path("src/sub/letter.txt")).unwrap();
    place.back_up("src", &[]);
    let [first, second] = &place.ids()[..] else {
        panic!("two backups");
    };
    let has_it = format!("`fullbore restore r@{first} sub/letter.txt --to DIR`");
    for line in [
        "restore r sub/letter.txt --to o".to_owned(),
        format!("restore r@{second} sub/letter.txt --to o -n"),
    ] {
        assert_said(&place.run(&line), 1, &[&has_it]);
    }
    let nowhere = place.run("restore r sub/other.txt --to o");
    assert_said(&nowhere, 1, &["`fullbore find REPO NAME`"]);
    let found = place.run("find r letter.txt");
    assert!(
        found.out.contains(&format!("(gone in {second})")),
        "{}",
        found.out
    );
    let found = fullbore(args!["find", place.path("r"), "*.txt", "--json"]).ends_with(0);
    let gone: Vec<_> = found
        .json()
        .into_iter()
        .map(|line| line["gone_id"].clone())
        .collect();
    assert_eq!(gone, [serde_json::Value::Null, second.as_str().into()]);
    // The whole place of the only path is told.
    let line = format!("restore r@{first} sub/letter.txt --to back");
    let restored = place.run(&line).ends_with(0);
    let said = format!("{}{}", restored.out, restored.err);
    assert!(
        said.contains("restored as \"back/sub/letter.txt\""),
        "{said}"
    );
}

#[test]
fn a_backup_of_another_host_is_neither_forgotten_nor_changed_by_its_id() {
    let place = Place::new();
    place.back_up("src", &["--host", "other"]);
    let ids = place.ids();
    let id = &ids[0];
    for line in [
        format!("forget r {id} --host other --yes"),
        format!("forget r@{id} --host other --yes"),
        format!("tag r@{id} x=y --host other"),
        format!("pin r@{id} --host other"),
    ] {
        let words = [
            &*format!("cannot use backup {id:?}"),
            "--host other does not select it",
        ];
        assert_said(&place.run(&line), 2, &words);
    }
    assert_eq!(place.ids(), ids);
    place
        .run(&format!("forget r {} --host other --yes", ids[1]))
        .ends_with(0);
    assert_eq!(place.ids(), ids[..1]);
}

#[test]
fn what_could_not_be_read_is_not_counted_as_stored() {
    let place = Place::new();
    write(place.path("src/secret"), "secret");
    if !or_skip(is_root(), "only root can be somebody else") {
        return;
    }
    let line = "chmod 0600 \"$2/src/secret\" && chmod -R a+rX \"$2\" && chmod 0600 \"$2/src/secret\" && chmod 0777 \"$2\" && \
        exec setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all \"$1\" backup \"$2/src\" --to \"$2/new\" $3";
    let run_as = |option: &str| shell(line, args![runs::FULLBORE, place.dir.path(), option]);
    let ran = run_as("").ends_with(3);
    let said = format!("{}{}", ran.out, ran.err);
    assert!(said.contains("\n2 files, 5 B in"), "{said}");
    let list = fullbore(args!["list", place.path("new"), "--json"]).ends_with(0);
    assert_eq!(list.json()[0]["files"], 2);
}

#[test]
fn a_dry_restore_counts_newer_files_as_kept() {
    let place = Place::new();
    set_mtime(&place.path("src/a.txt"), 1_700_000_000, 0);
    place.back_up("src", &[]);
    write(place.path("src/a.txt"), "newer");
    let words = args!["restore", place.path("r"), "--to", place.path("src"), "-n"];
    let dry = |more: &str| fullbore(words.clone().into_iter().chain([more.into()])).ends_with(0);
    let older = dry("--overwrite");
    assert_eq!(older.out, "");
    for word in [
        "0 changed",
        "1 newer file of the target would be kept",
        "--overwrite=all",
    ] {
        assert!(older.err.contains(word), "{}", older.err);
    }
    let all = dry("--overwrite=all");
    assert_eq!(all.out, "~ a.txt\n", "{}", all.err);
    let json = words.into_iter().chain(args(["--overwrite", "--json"]));
    let result = fullbore(json).ends_with(0).json().pop().unwrap();
    assert_eq!(
        (&result["kept"], &result["changed"]),
        (&1.into(), &0.into())
    );
}

#[test]
fn names_that_match_nothing_are_told_to_who_looks_at_patterns() {
    let place = Place::new();
    let said = "note: the pattern \"cahce\" matched nothing";
    for line in [
        "backup src --to r -e cahce -n",
        "backup src --to r -e cahce -v",
        "copy src/ new -e cahce -n",
    ] {
        let ran = place.run(line).ends_with(0);
        let all = format!("{}{}", ran.out, ran.err);
        assert!(all.contains(said), "{line}: {all}");
    }
    let ran = place.run("backup src --to r -e cahce").ends_with(0);
    assert!(!ran.err.contains("cahce"), "{}", ran.err);
    let matched = place.run("backup src --to r -e sub -n").ends_with(0);
    assert!(!matched.out.contains("matched nothing"), "{}", matched.out);
}

#[test]
fn a_copy_without_a_slash_says_where_the_content_goes() {
    let place = Place::new();
    write(place.path("dst/other"), "");
    let note = "goes into \"dst\" itself, and everything else there is deleted; for a directory in it, write \"dst/src\"";
    let told = place.run("copy -a --delete -n src dst");
    assert!(told.err.contains(note), "{}", told.err);
    for line in [
        "copy -a --delete -n src/ dst",
        "copy -a --delete src dst -q --max-delete 9",
        "copy -n src dst/src",
        "copy -n src new",
    ] {
        let ran = place.run(line);
        assert!(!ran.err.contains("itself"), "{line}: {}", ran.err);
    }
    let inside = place.run("copy src r/x");
    assert_said(&inside, 2, &["name a directory beside it"]);
}

#[test]
fn a_tilde_in_quotes_is_explained() {
    let place = Place::new();
    for word in ["~", "~/docs"] {
        let ran = place.run(&format!("backup {word} --to r"));
        assert_said(&ran, 1, &["in quotes, ~ is a name like any other"]);
    }
}

#[test]
fn a_repository_that_goes_away_during_its_backup_is_told_so() {
    let place = Place::new();
    let mut backup = started(args![
        "backup",
        "--stdin-name",
        "s",
        "--to",
        place.path("r"),
        "-q"
    ]);
    let mut input = backup.stdin.take().unwrap();
    input.write_all(&[7; 1 << 20]).unwrap();
    let intents = place.path("r/intents");
    while runs::names(&intents).is_empty() {
        thread::sleep(Duration::from_millis(10));
    }
    fs::rename(place.path("r"), place.path("unplugged")).unwrap();
    drop(input);
    let ran: Ran = backup.wait_with_output().unwrap().into();
    assert_said(
        &ran,
        1,
        &[
            "is not there any more",
            "nothing was committed",
            "is its disk mounted?",
        ],
    );
    assert!(!ran.err.contains("took it for dead"), "{}", ran.err);
}

#[test]
fn a_run_without_its_repository_says_so_once() {
    let place = Place::new();
    let profile = place.path("p.toml");
    let text = format!(
        "repository = {:?}\nsources = [{:?}]\n",
        place.path("away"),
        place.path("src")
    );
    write(&profile, text);
    let ran = fullbore(args!["run", "--config", profile]).ends_with(1);
    assert!(
        ran.err
            .contains("verify: not run, because the repository is not there"),
        "{}",
        ran.err
    );
    let errors = ran.err.lines().filter(|line| line.starts_with("error:"));
    assert_eq!(errors.count(), 1, "{}", ran.err);
}

#[test]
fn a_backup_is_copied_with_a_profile_that_leaves_something_out() {
    let place = Place::new();
    let profile = place.path("p.toml");
    let text = format!(
        "repository = {:?}\nsources = [{:?}]\nexclude = [\"*.tmp\"]\n",
        place.path("r"),
        place.path("src")
    );
    write(&profile, text);
    let second = place.path("second");
    fullbore(args!["copy", "--config", profile, second, "-q"]).ends_with(0);
    let list = fullbore(args!["list", second, "--json"]).ends_with(0);
    assert_eq!(list.json()[0]["files"], 2);
    // Typed, it is a mistake.
    let typed = fullbore(args![
        "copy",
        place.path("r"),
        place.path("third"),
        "-e",
        "x"
    ]);
    assert_said(&typed, 2, &["cannot copy a backup with --exclude"]);
}

#[test]
fn a_check_of_a_profile_names_all_its_mistakes() {
    let place = Place::new();
    let profile = place.path("p.toml");
    write(
        &profile,
        "repository = \"disk/y\"\nexcludes = [\"x\"]\nsources = [\"/tmp\"]\n[forget]\nkep-daily = 7\n",
    );
    let ran = fullbore(args!["config", "check", "--config", profile]);
    let words = [
        "line 1, column 14",
        "line 2, column 12: there is no option \"excludes\" (did you mean \"exclude\"?)",
        "line 5, column 13: `fullbore forget` has no option \"kep-daily\"",
    ];
    assert_said(&ran, 2, &words);
}

#[test]
fn the_units_of_a_profile_may_change_the_repository_of_another_user() {
    let place = Place::new();
    if !or_skip(is_root(), "only root has another user's repository") {
        return;
    }
    let unit = |repositories: &str| {
        let profile = place.path("night.toml");
        write(
            &profile,
            format!("{repositories}\nsources = [{:?}]\n", place.path("src")),
        );
        fullbore(args!["systemd", "--config", profile])
            .ends_with(0)
            .out
    };
    let (own, others) = (place.path("r"), place.path("others"));
    fullbore(args!["init", others, "-q"]).ends_with(0);
    shell("chown -R 65534:65534 \"$1\"", args![others]).ends_with(0);
    assert_eq!(fs::metadata(&others).unwrap().uid(), 65_534);
    let changes =
        "\nCapabilityBoundingSet=CAP_DAC_READ_SEARCH CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER\n";
    let reads = "\nCapabilityBoundingSet=CAP_DAC_READ_SEARCH CAP_FOWNER\n";
    let of_own = unit(&format!("repository = {own:?}"));
    assert!(of_own.contains(reads), "{of_own}");
    let of_others = unit(&format!("repository = {others:?}"));
    assert!(of_others.contains(changes), "{of_others}");
    let of_both = unit(&format!("repositories = [{own:?}, {others:?}]"));
    assert!(of_both.contains(changes), "{of_both}");
    for written in [&own, &others] {
        let line = format!("\nReadWritePaths=-{}\n", written.display());
        assert!(of_both.contains(&line), "{of_both}");
    }
}
