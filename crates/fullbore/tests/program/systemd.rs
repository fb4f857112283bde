//! The units in `contrib/systemd` are right, and run the profile that is the example.

use crate::runs;
use crate::runs::{fullbore, has, or_skip, shell, temp, write};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

const PROGRAM: &str = "/usr/bin/fullbore";

fn source(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(name)
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
    assert_eq!(units.len(), 3);
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
        units[2].1.replace("OnCalendar=", "OnCalender="),
    );
    assert!(verify("fullbore-wrong@.timer").err.contains("OnCalender"));
}

#[test]
fn the_service_tells_of_its_failure_and_has_a_timer() {
    let services = files(".service");
    let service = &services["fullbore@.service"];
    assert!(service.contains("\nOnFailure=fullbore-alert@%n.service\n"));
    assert!(files(".timer").contains_key("fullbore@.timer"));
    assert_eq!(commands(service), ["/usr/bin/fullbore run %i"]);
    // An exit code of 3 can be a corrupt database.
    assert!(
        !services
            .values()
            .any(|text| text.contains("SuccessExitStatus"))
    );
}

#[test]
fn no_scheduled_backup_makes_a_repository() {
    let operations = fs::read_to_string(source("doc/operations.md")).unwrap();
    let lines = operations.lines().map(|line| line.trim_start_matches("$ "));
    let backups: Vec<_> = lines
        .filter(|line| line.starts_with("fullbore backup "))
        .collect();
    assert_eq!(backups.len(), 2, "{backups:?}");
    assert!(
        backups.iter().all(|line| line.contains(" --no-create")),
        "{backups:?}"
    );
}

#[test]
fn the_service_runs_the_profile_that_is_the_example() {
    let dir = temp();
    write(dir.path().join("tree/file"), "content");
    let example = fs::read_to_string(source("contrib/systemd/example.toml")).unwrap();
    // The settings that are comments there, too.
    let whole: Vec<_> = example
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(setting) if !setting.starts_with(' ') => setting,
            _ => line,
        })
        .collect();
    for text in [example.clone(), whole.join("\n")] {
        let file = dir.path().join("web.toml");
        write(&file, &text);
        runs::set_mode(&file, 0o600);
        fullbore(args!["config", "check", "--config", file]).ends_with(0);
    }
    let place = |name: &str| dir.path().join(name).display().to_string();
    let text = example
        .replace("/mnt/disk/web", &place("repository"))
        .replace("/srv/www", &place("tree"));
    let file = dir.path().join("web.toml");
    write(&file, text);
    fullbore(args!["init", "--config", file]).ends_with(0);
    fullbore(args!["run", "--config", file]).ends_with(0);
}
