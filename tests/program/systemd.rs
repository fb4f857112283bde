//! The units in `contrib/systemd` are right, and the commands in them are commands of this program.

use crate::runs;
use crate::runs::{fullbore, has, or_skip, shell, temp, write};
use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

const PROGRAM: &str = "/usr/bin/fullbore";

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Names and texts of the files in `contrib/systemd` that end so.
fn files(ending: &str) -> BTreeMap<String, String> {
    let names = runs::names(&source("contrib/systemd"))
        .into_iter()
        .filter(|name| name.ends_with(ending));
    let texts = names.map(|name| {
        (
            name.clone(),
            fs::read_to_string(source("contrib/systemd").join(name)).unwrap(),
        )
    });
    texts.collect()
}

/// The commands that a service runs, in order.
fn commands(service: &str) -> Vec<&str> {
    service
        .lines()
        .filter_map(|line| line.strip_prefix("ExecStart="))
        .collect()
}

#[test]
fn systemd_finds_nothing_wrong_with_the_units() {
    if !or_skip(has("systemd-analyze"), "there is no systemd-analyze") {
        return;
    }
    let dir = temp();
    let units: Vec<_> = [files(".service"), files(".timer")]
        .into_iter()
        .flatten()
        .collect();
    assert_eq!(units.len(), 9);
    for (name, text) in &units {
        write(dir.path().join(name), text.replace(PROGRAM, runs::FULLBORE));
    }
    let verify = |name: &str| {
        shell(
            "systemd-analyze verify --man=no --recursive-errors=no \"$1\"",
            args![dir.path().join(name)],
        )
    };
    for (name, _) in &units {
        let ran = verify(name).ends_with(0);
        assert_eq!(ran.err, "", "{name}");
    }
    // It does find something.
    write(
        dir.path().join("fullbore-wrong@.timer"),
        units[5].1.replace("OnCalendar=", "OnCalender="),
    );
    assert!(verify("fullbore-wrong@.timer").err.contains("OnCalender"));
}

#[test]
fn every_service_but_the_alert_tells_of_its_failure_and_each_has_a_timer() {
    let timers = files(".timer");
    for (name, text) in files(".service") {
        let is_alert = name == "fullbore-alert@.service";
        assert_eq!(
            text.contains("\nOnFailure=fullbore-alert@%n.service\n"),
            !is_alert,
            "{name}"
        );
        assert_eq!(
            timers.contains_key(&name.replace(".service", ".timer")),
            !is_alert,
            "{name}"
        );
        // An exit code of 3 can be a corrupt database.
        assert!(!text.contains("SuccessExitStatus"), "{name}");
    }
}

#[test]
fn no_scheduled_backup_makes_a_repository() {
    let services = files(".service");
    let of_units = services.values().flat_map(|text| commands(text));
    let operations = fs::read_to_string(source("doc/operations.md")).unwrap();
    let of_operations = operations.lines().map(|line| line.trim_start_matches("$ "));
    let scheduled: Vec<&str> = of_units.chain(of_operations).collect();
    let begins = [&format!("{PROGRAM} backup "), "fullbore backup "];
    let backups: Vec<_> = scheduled
        .iter()
        .filter(|line| begins.iter().any(|begin| line.starts_with(*begin)))
        .collect();
    assert_eq!(backups.len(), 4, "{backups:?}");
    assert!(
        backups.iter().all(|line| line.contains(" --no-create")),
        "{backups:?}"
    );
}

/// The settings of the example, those too that are comments there.
fn example() -> BTreeMap<String, String> {
    let text = fs::read_to_string(source("contrib/systemd/example.conf")).unwrap();
    let settings = text
        .lines()
        .filter_map(|line| line.trim_start_matches('#').split_once('='));
    settings
        .filter(|(key, _)| !key.contains(' '))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

/// The words of a command as systemd passes them: `${KEY}` is one word, `$KEY` as many as there are in its value.
fn words(command: &str, settings: &BTreeMap<String, String>) -> Vec<OsString> {
    let value = |key: &str| {
        settings
            .get(key)
            .unwrap_or_else(|| panic!("{key} is not in example.conf"))
            .clone()
    };
    let expand = |word: &str| match word
        .strip_prefix("${")
        .and_then(|rest| rest.strip_suffix('}'))
    {
        Some(key) => vec![value(key)],
        None => match word.strip_prefix('$') {
            Some(key) => value(key)
                .split_whitespace()
                .map(|word| word.replace('"', ""))
                .collect(),
            None => vec![word.to_owned()],
        },
    };
    command
        .split_whitespace()
        .flat_map(expand)
        .map(OsString::from)
        .collect()
}

#[test]
fn the_commands_of_the_units_run_with_the_settings_of_the_example() {
    let dir = temp();
    let [tree, repository] = ["tree", "repository"].map(|name| dir.path().join(name));
    write(tree.join("file"), "content");
    fullbore(args!["init", repository]).ends_with(0);
    let mut settings = example();
    settings.insert(
        "REPOSITORY".to_owned(),
        repository.to_str().unwrap().to_owned(),
    );
    settings.insert("SOURCE".to_owned(), tree.to_str().unwrap().to_owned());
    let services = files(".service");
    let of = |name: &str| commands(&services[name]);
    assert_eq!(
        of("fullbore-backup@.service"),
        of("fullbore-postgres@.service")
    );
    for name in [
        "fullbore-backup@.service",
        "fullbore-prune@.service",
        "fullbore-verify@.service",
    ] {
        for command in of(name) {
            let words = words(command, &settings);
            assert_eq!(words[0], PROGRAM);
            fullbore(words.into_iter().skip(1)).ends_with(0);
        }
    }
}
