//! Lines of `--json`: each is as `doc/json.schema.json` says, and its keys are in `doc/json.md`.

use serde_json::Value;
use std::{fs, os::unix::fs::symlink, path::Path, process::Command};
use testkit::{
    runs::{command, temp, write},
    schema::{self, definitions},
};

fn document() -> String {
    let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../doc/json.md"));
    fs::read_to_string(file).unwrap()
}

/// The keys that the rows of `doc/json.md` name which begin with one of `commands`.
fn documented_keys(document: &str, commands: &[&str]) -> Vec<String> {
    let is_row = |line: &&str| {
        let name = line
            .strip_prefix("| ")
            .and_then(|row| row.split(" | ").next());
        name.is_some_and(|name| commands.contains(&name))
    };
    let rows = document.lines().filter(is_row);
    let words = rows.flat_map(|row| row.split('`').skip(1).step_by(2));
    words.map(str::to_owned).collect()
}

/// Makes an encrypted repository, to which somebody has the key.
const SEALED: &str =
    "init sealed --encrypt-to age17n0dh6am39xaacvqu5tksntrss0dqnaty5tznlmf6yhg8vg9lsyqperzv9";

/// Command lines, the rows of the document that are about them, and exit codes.
const LINES: [(&[&str], &str, i32); 47] = [
    (&["`init`"], "init repo", 0),
    (&["`backup`"], "backup tree --to repo", 0),
    (&["`backup`"], "backup tree --to repo", 0),
    (
        &["`backup --dry-run`"],
        "backup tree --to repo --dry-run",
        0,
    ),
    (&["`backup`"], "backup more --to repo", 0),
    (&["`restore`"], "restore repo --to back --path tree", 0),
    (
        &["`restore`"],
        "restore repo --to back --path tree --delta --delete",
        0,
    ),
    (
        &["`restore --dry-run`"],
        "restore repo --to back --path tree --mirror -n",
        0,
    ),
    (
        &["`restore --plan`"],
        "restore repo --to other --path tree --plan",
        0,
    ),
    (&["`list` of a repository"], "list repo", 0),
    (&["`list` of a backup"], "list repo@latest --path tree", 0),
    (
        &["`show`", "`list` of a repository"],
        "show repo --path tree",
        0,
    ),
    (&["`verify`"], "verify repo", 0),
    (&["`verify`"], "verify repo --sample 50%", 0),
    (&["`verify`"], "verify repo --path tree --against more", 1),
    (&["`diff`"], "diff repo latest~1 latest --path tree", 0),
    (&["`find`"], "find repo file", 0),
    (
        &["`export`", "`backup`"],
        "export repo --to x.tar.zst --path tree",
        0,
    ),
    (&["`list` of a backup"], "list x.tar.zst", 0),
    (&["`show`", "`list` of a repository"], "show x.tar.zst", 0),
    (&["`restore`"], "restore x.tar.zst --to unpacked", 0),
    (&["`copy` of a directory"], "copy tree copied -v", 0),
    (
        &["`copy` of a directory"],
        "copy more copied -n --delete",
        0,
    ),
    (&["`copy` of a backup"], "copy repo copy --path tree", 0),
    (&["`sync`"], "sync repo synced -n", 0),
    (&["`sync`"], "sync repo synced", 0),
    (&["`tag`"], "tag repo a=b --path tree", 0),
    (&["`forget`"], "forget repo --keep-last 1 -n", 0),
    (
        &["`forget`", "`prune`", "`prune`, of WAL"],
        "forget repo --keep-last 1 --prune",
        0,
    ),
    (&["`prune`", "`prune`, of WAL"], "prune repo", 0),
    (&["`tag`"], "tag copy a=b", 0),
    (&["`pin`, `unpin`"], "pin copy", 0),
    (&["`pin`, `unpin`"], "unpin copy", 0),
    (&["`forget`"], "forget copy latest --yes", 0),
    (&["`forget`"], "forget repo --keep-last 1 --path tree -n", 0),
    (&["`stats`"], "stats repo", 0),
    (&["`status`"], "status", 0),
    (&["`fleet`"], "fleet repo nowhere --every 1d", 1),
    (&["`repair`"], "repair repo", 0),
    (&["`bench`"], "bench digest", 0),
    (&["`init`"], "init night", 0),
    (&["`run`"], "run --config night.toml", 0),
    (&["`config check`"], "config check --config night.toml", 0),
    (&["`systemd`"], "systemd --config night.toml", 0),
    (&["`init`"], SEALED, 0),
    (&["`key list`"], "key list sealed", 0),
    (&["`simtape`"], "simtape drive", 0),
];

#[test]
fn every_line_of_json_is_as_the_schema_says_and_its_keys_are_documented() {
    let (dir, document) = (temp(), document());
    write(dir.path().join("tree/file"), "content");
    write(dir.path().join("more/other"), "content");
    symlink("file", dir.path().join("tree/link")).unwrap();
    let place = dir.path().display();
    let profile = format!(
        "repository = '{place}/night'\nsources = ['{place}/tree']\n[forget]\nkeep-last = 1\n"
    );
    write(dir.path().join("night.toml"), profile);
    for (rows, line, code) in LINES {
        let words = line.split(' ').chain(["--json"]).map(Into::into);
        let run = command(words).current_dir(dir.path()).output().unwrap();
        let said = String::from_utf8_lossy(&run.stderr);
        assert_eq!(run.status.code(), Some(code), "{line}: {said}");
        let printed = String::from_utf8(run.stdout).unwrap();
        assert!(!printed.is_empty() || code == 2, "{line}: {said}");
        let documented = documented_keys(&document, rows);
        let verb = line.split(' ').next();
        for printed in printed.lines() {
            let object: Value = serde_json::from_str(printed).unwrap();
            schema::check_line(verb, &object)
                .unwrap_or_else(|why| panic!("{line}: {printed}\n{why}"));
            let is_extra =
                |key: &&String| !documented.contains(key) && object["type"] != "progress";
            let keys = object.as_object().unwrap().keys();
            assert_eq!(keys.into_iter().find(is_extra), None, "{line}");
        }
    }
}

/// The names of all commands, from the last lines of the completions.
fn all_verbs() -> Vec<String> {
    let help = Command::new(testkit::runs::FULLBORE)
        .arg("--help")
        .output()
        .unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let lines = help.lines().filter_map(|line| line.strip_prefix("  "));
    let names = lines.filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()));
    let names = names.filter_map(|line| line.split_once(' ').map(|(name, _)| name.to_owned()));
    names.filter(|name| name != "help").collect()
}

#[test]
fn each_verb_has_a_schema_or_refuses_json() {
    let verbs = all_verbs();
    assert!(verbs.len() > 30, "{verbs:?}");
    for (verb, words) in [
        ("cat", "cat r f"),
        ("serve", "serve --stdio"),
        ("host", "host remove r h"),
        ("completions", "completions bash"),
        ("man", "man"),
        ("wal", "wal push f --to r"),
        ("tape", "tape scan sim:x"),
    ] {
        let line = words.split(' ').chain(["--json"]).map(Into::into);
        let run = command(line).output().unwrap();
        let said = String::from_utf8_lossy(&run.stderr);
        assert_eq!(run.status.code(), Some(2), "{words}: {said}");
        assert!(said.contains("cannot use --json"), "{words}: {said}");
        assert!(run.stdout.is_empty() && verbs.iter().any(|name| name == verb));
    }
    let without = ["cat", "serve", "host", "completions", "man"];
    for verb in &verbs {
        let has_schema = schema::verbs().contains(&&verb[..]);
        assert_eq!(has_schema, !without.contains(&&verb[..]), "{verb}");
    }
    for verb in schema::verbs() {
        assert!(
            verbs.iter().any(|name| name == verb),
            "{verb} is no command"
        );
    }
}

/// Calls `found` with each key that an object of this schema may have.
fn each_property<'a>(schema: &'a Value, found: &mut dyn FnMut(&'a str, &'a Value)) {
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, rule) in properties.into_iter().flatten() {
        found(name, rule);
        each_property(rule, found);
    }
    for keyword in ["items", "additionalProperties"] {
        schema
            .get(keyword)
            .into_iter()
            .for_each(|rule| each_property(rule, found));
    }
    let any = schema.get("anyOf").and_then(Value::as_array);
    any.into_iter()
        .flatten()
        .for_each(|rule| each_property(rule, found));
}

#[test]
fn one_name_has_one_type_in_all_lines() {
    for (name, definition) in definitions() {
        each_property(definition, &mut |key, rule| {
            let reference = rule["$ref"].as_str();
            let is_of_name = reference == Some(&format!("#/$defs/key.{key}"));
            assert!(
                is_of_name || name == "path" && key == "hex",
                "{name}: {key}: {rule}"
            );
        });
        if let Some(line) = name.strip_prefix("line.") {
            assert!(
                definition["properties"]["type"]["const"].is_string(),
                "{line}"
            );
            assert_eq!(definition["additionalProperties"], false, "{line}");
        }
    }
}

#[test]
fn every_key_of_the_schema_is_in_the_document() {
    let document = document();
    for name in definitions().keys() {
        let Some(key) = name.strip_prefix("key.") else {
            continue;
        };
        assert!(document.contains(&format!("`{key}`")), "{key}");
    }
}

#[test]
fn the_checker_refuses_what_the_schema_refuses() {
    let right = serde_json::json!({"type": "result", "id": "x", "pinned": true});
    let with = |key: &str, value: Value| {
        let mut line = right.clone();
        line[key] = value;
        schema::check_line(Some("pin"), &line)
    };
    assert_eq!(schema::check_line(Some("pin"), &right), Ok(()));
    assert_eq!(with("id", Value::Null), Ok(()));
    for (key, value, why) in [
        ("id", 3.into(), ".id is 3"),
        ("more", 3.into(), "has \"more\""),
        ("type", "other".into(), ".type is \"other\""),
        ("pinned", 3.into(), ".pinned is 3"),
    ] {
        let said = with(key, value).unwrap_err();
        assert!(said.contains(why), "{key}: {said}");
    }
    let lacks = serde_json::json!({"type": "result", "id": "x"});
    let said = schema::check_line(Some("pin"), &lacks).unwrap_err();
    assert!(said.contains("lacks \"pinned\""), "{said}");
    let said = schema::check_line(Some("host"), &right).unwrap_err();
    assert!(said.contains("no schema"), "{said}");
    let late = serde_json::json!({"type": "due", "source": null, "source_text": "x", "level": -1,
        "time": "yesterday", "due": true, "next_level": 1});
    let said = schema::check_line(Some("list"), &late).unwrap_err();
    assert!(
        said.contains("below 0") || said.contains("no time"),
        "{said}"
    );
}
