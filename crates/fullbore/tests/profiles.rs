//! Profiles, the environment, `run` with its hooks and metrics, units, and backups of the output of a command: end to end.

use serde_json::Value;
use std::{
    fs,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use testkit::runs::{self, Ran, command, has, names, or_skip, set_mode, shell, temp, write};

/// A directory with a source, a place for a repository and profiles.
struct Host {
    dir: tempfile::TempDir,
}

impl Host {
    fn new() -> Self {
        let dir = temp();
        write(dir.path().join("src/a.txt"), "content");
        write(dir.path().join("src/x.tmp"), "left out");
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A profile with the repository and the source of this host, and `rest`.
    fn profile(&self, name: &str, rest: &str) {
        let dir = self.dir.path().display();
        let rest = rest.replace("DIR", &dir.to_string());
        let text = format!("repository = '{dir}/repo'\nsources = ['{dir}/src']\n{rest}");
        write(self.path(&format!("config/fullbore/{name}.toml")), text);
        set_mode(&self.path(&format!("config/fullbore/{name}.toml")), 0o644);
    }

    fn run_with(&self, line: &str, variables: &[(&str, &str)]) -> Ran {
        let mut command = command(runs::args(line.split(' ')));
        command.env("XDG_CONFIG_HOME", self.path("config"));
        command.env("XDG_CACHE_HOME", self.path("cache"));
        command.env("FULLBORE_STATE_DIR", self.path("state"));
        command.envs(variables.iter().copied());
        command.current_dir(self.dir.path());
        command.output().unwrap().into()
    }

    fn run(&self, line: &str) -> Ran {
        self.run_with(line, &[])
    }

    fn json(&self, name: &str) -> Value {
        serde_json::from_str(&fs::read_to_string(self.path(name)).unwrap()).unwrap()
    }

    fn backups(&self) -> usize {
        self.run("list repo --json").ends_with(0).json().len()
    }
}

#[test]
fn a_profile_gives_every_command_its_options_and_the_command_line_wins() {
    let host = Host::new();
    host.profile(
        "web",
        "[backup]\nexclude = ['*.tmp']\nhost = 'web'\ntag = ['of=profile']\n",
    );
    host.run("init -P web").ends_with(0);
    host.run("backup -P web").ends_with(0);
    let listed = host.run("list --profile web @latest").ends_with(0).out;
    assert!(
        listed.contains("a.txt") && !listed.contains("x.tmp"),
        "{listed}"
    );
    host.run("backup -P web --host other --tag more=1")
        .ends_with(0);
    let backups = host.run("list -P web --json").ends_with(0).json();
    let hosts: Vec<_> = backups.iter().map(|line| &line["source"]["host"]).collect();
    assert_eq!(hosts, ["web", "other"]);
    assert_eq!(
        backups[1]["tags"],
        serde_json::json!({"of": "profile", "more": "1"})
    );
    host.run("restore -P web @latest --host web --to back")
        .ends_with(0);
    assert!(host.path("back/a.txt").exists());
}

#[test]
fn variables_stand_for_options_and_those_of_tests_do_no_harm() {
    let host = Host::new();
    let repository = host.path("repo");
    let repository = ("FULLBORE_REPOSITORY", repository.to_str().unwrap());
    host.run_with(
        "backup src",
        &[
            repository,
            ("FULLBORE_HOST", "h1"),
            ("FULLBORE_EXCLUDE", "*.tmp"),
        ],
    )
    .ends_with(0);
    let others = [
        repository,
        ("FULLBORE_POSTGRES", "/x"),
        ("FULLBORE_OBJECT_STORES", "/x"),
    ];
    let listed = host.run_with("list --json", &others).ends_with(0).json();
    assert_eq!(listed[0]["source"]["host"], "h1");
    assert_eq!(listed[0]["files"], 1);
    host.profile("web", "host = 'h2'\n");
    host.run_with("backup -P web", &[("FULLBORE_HOST", "h3")])
        .ends_with(0);
    host.run_with("backup", &[("FULLBORE_PROFILE", "web")])
        .ends_with(0);
    let listed = host.run("list repo --json").json();
    assert_eq!(listed[1]["source"]["host"], "h3");
    assert_eq!(listed[2]["source"]["host"], "h2");
    // A value is checked as a typed one.
    let bad = host
        .run_with("backup -P web", &[("FULLBORE_WORKERS", "0")])
        .ends_with(2);
    assert!(bad.err.contains("--workers"), "{}", bad.err);
}

#[test]
fn a_profile_with_an_unknown_key_is_refused_by_every_command() {
    let host = Host::new();
    host.profile("web", "[backup]\nexcludes = 'x'\n");
    for line in [
        "backup -P web",
        "list -P web",
        "run web",
        "config check web",
    ] {
        let ran = host.run(line).ends_with(2).has_one_error("\"excludes\"");
        assert!(ran.err.contains("did you mean \"exclude\"?"), "{}", ran.err);
    }
    let missing = host
        .run("run webs")
        .ends_with(1)
        .has_one_error("there is no profile \"webs\"");
    assert!(
        missing.err.contains("did you mean \"web\"?"),
        "{}",
        missing.err
    );
    host.run("run")
        .ends_with(2)
        .has_one_error("no profile was named");
}

#[test]
fn config_check_prints_the_commands_and_refuses_bad_values() {
    let host = Host::new();
    host.profile(
        "web",
        "key = '/k'\n[forget]\nkeep-last = 3\n[verify]\nfor = '30m'\n[hooks]\nbefore = ['true']\n",
    );
    let said = host.run("config check web").ends_with(0).out;
    let repo = host.path("repo").display().to_string();
    for line in [
        format!(
            "  backup: fullbore backup --key=/k --to={repo} --no-create {}",
            host.path("src").display()
        ),
        format!("  forget: fullbore forget --keep-last=3 --key=/k {repo}"),
        format!("  verify: fullbore verify --for=30m --key=/k {repo}"),
        "  before: true".to_owned(),
    ] {
        assert!(said.contains(&line), "{line}\n{said}");
    }
    host.profile("bad", "[backup]\nworkers = 0\n");
    let all = host.run("config check").ends_with(2);
    assert!(all.out.contains("web: "), "{}", all.out);
    all.has_one_error("`fullbore backup` cannot run");
}

#[test]
fn a_hook_gets_no_credentials() {
    let host = Host::new();
    host.profile("web", "[hooks]\nbefore = 'env > before.env'\n");
    host.run("init -P web").ends_with(0);
    let variables = [
        ("AWS_SECRET_ACCESS_KEY", "hunter2"),
        ("AZURE_STORAGE_KEY", "hunter2"),
        ("AWS_REGION", "kept"),
    ];
    host.run_with("run web", &variables).ends_with(0);
    let said = fs::read_to_string(host.path("before.env")).unwrap();
    assert!(said.contains("AWS_REGION=kept"), "{said}");
    assert!(!said.contains("hunter2"), "{said}");
}

#[test]
fn a_run_does_all_steps_and_tells_hooks_and_metrics() {
    let host = Host::new();
    let rest = "metrics = 'DIR/web.prom'\n[forget]\nkeep-last = 1\n[hooks]\nbefore = 'cat > before.json'\n\
                on_success = 'cat > success.json; echo said by the hook'\non_failure = 'cat > failure.json'\nafter = 'cat > after.json'\n";
    host.profile("web", rest);
    // Without a repository nothing is made: its disk may not be mounted.
    let failed = host.run("run web").ends_with(1);
    assert!(
        failed
            .err
            .contains("forget: not run, because the backup failed"),
        "{}",
        failed.err
    );
    assert_eq!(host.json("failure.json")["outcome"], "failure");
    let step = &host.json("failure.json")["steps"][0];
    assert!(
        step["messages"].to_string().contains("--no-create"),
        "{step}"
    );
    let numbers = fs::read_to_string(host.path("web.prom")).unwrap();
    assert!(
        numbers.contains("fullbore_last_run_exit_code{profile=\"web\"} 1\n"),
        "{numbers}"
    );
    assert!(!numbers.contains("last_success"), "{numbers}");
    host.run("init -P web").ends_with(0);
    fs::remove_file(host.path("failure.json")).unwrap();
    host.run("run web").ends_with(0);
    let ran = host.run("run web --json").ends_with(0);
    assert!(ran.err.contains("said by the hook"), "{}", ran.err);
    let lines = ran.json();
    let steps: Vec<_> = lines[..4].iter().map(|line| &line["step"]).collect();
    assert_eq!(steps, ["backup", "forget", "prune", "verify"]);
    assert_eq!(
        lines[1]["result"],
        serde_json::json!({"forgotten_backups": 1, "kept_backups": 1})
    );
    assert_eq!(lines[4]["type"], "result");
    assert_eq!(host.backups(), 1);
    assert_eq!(host.json("before.json")["steps"], serde_json::json!([]));
    let after = host.json("after.json");
    assert_eq!(
        (&after["hook"], &after["outcome"]),
        (&"after".into(), &"success".into())
    );
    assert_eq!(
        after["steps"][3]["result"]["sampled"]["never_checked_bytes"],
        0
    );
    assert!(host.path("success.json").exists() && !host.path("failure.json").exists());
    let numbers = fs::read_to_string(host.path("web.prom")).unwrap();
    for line in [
        "fullbore_last_run_exit_code{profile=\"web\"} 0\n",
        "fullbore_last_success_timestamp_seconds{profile=\"web\"} ",
        "fullbore_backup_bytes{profile=\"web\"} ",
        "fullbore_verified_ratio{profile=\"web\"} 1\n",
        "fullbore_newest_backup_timestamp_seconds{profile=\"web\",source=\"",
        "fullbore_step_exit_code{profile=\"web\",step=\"prune\"} 0\n",
    ] {
        assert!(numbers.contains(line), "{line}\n{numbers}");
    }
    // Nothing is left beside it.
    assert_eq!(
        names(host.dir.path())
            .iter()
            .filter(|name| name.contains(".prom"))
            .count(),
        1
    );
}

#[test]
fn a_backup_alone_writes_metrics_too() {
    let host = Host::new();
    host.run("backup src --to repo --metrics disk.prom")
        .ends_with(0);
    let numbers = fs::read_to_string(host.path("disk.prom")).unwrap();
    assert!(
        numbers.contains("fullbore_backup_files{profile=\"disk\"} 2\n"),
        "{numbers}"
    );
    assert!(
        numbers.contains("newest_backup_timestamp_seconds{profile=\"disk\""),
        "{numbers}"
    );
    host.run("backup nowhere --to repo --metrics disk.prom")
        .ends_with(1);
    let numbers = fs::read_to_string(host.path("disk.prom")).unwrap();
    assert!(
        numbers.contains("fullbore_last_run_exit_code{profile=\"disk\"} 1\n"),
        "{numbers}"
    );
    assert!(
        numbers.contains("fullbore_last_success_timestamp_seconds"),
        "{numbers}"
    );
    write(host.path("other.prom"), "node_up 1\n");
    host.run("backup src --to repo --metrics other.prom")
        .ends_with(1)
        .has_one_error("another file is there");
    host.run("backup src --to repo --metrics x.txt")
        .ends_with(2);
}

#[test]
fn a_failing_before_ends_the_run_and_after_still_runs() {
    let host = Host::new();
    let hooks =
        "[hooks]\nbefore = 'exit 7'\non_failure = 'touch failed'\nafter = 'cat > after.json'\n";
    host.profile("web", hooks);
    host.run("init -P web").ends_with(0);
    let ran = host.run("run web").ends_with(1);
    assert!(
        ran.err
            .contains("the hook \"before\" failed: it ended with code 7"),
        "{}",
        ran.err
    );
    assert_eq!(host.backups(), 0);
    assert!(host.path("failed").exists());
    let after = host.json("after.json");
    assert_eq!(after["exit_code"], 1);
    assert!(
        after["failures"][0].as_str().unwrap().contains("code 7"),
        "{after}"
    );
}

#[test]
fn a_hook_that_runs_too_long_is_killed_with_all_that_it_started() {
    let host = Host::new();
    let hooks = "steps = ['backup']\n[hooks]\ntimeout = '1s'\nafter = 'trap \"\" TERM; sleep 300 & echo $! > pid; wait; sleep 300'\n";
    host.profile("web", hooks);
    host.run("init -P web").ends_with(0);
    let begun = Instant::now();
    let ran = host.run("run web").ends_with(1);
    assert!(
        begun.elapsed() < Duration::from_secs(200),
        "it was waited for"
    );
    assert!(
        ran.err.contains("\"after\" failed: it ran too long"),
        "{}",
        ran.err
    );
    assert_eq!(host.backups(), 1);
    let pid = fs::read_to_string(host.path("pid")).unwrap();
    let state = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    assert!(state.is_empty() || state.contains(") Z "), "{state}");
}

#[test]
fn something_unread_or_a_warning_runs_the_hook_for_warnings() {
    let host = Host::new();
    let rest = "steps = ['backup']\nexclude = '/no/such'\n[hooks]\non_success = 'touch success'\non_warning = 'cat > warning.json'\n";
    host.profile("web", rest);
    host.run("init -P web").ends_with(0);
    let ran = host.run("run web").ends_with(0);
    assert!(
        ran.err.contains("warning: ") && ran.err.contains("done, with warnings"),
        "{}",
        ran.err
    );
    assert_eq!(host.json("warning.json")["warning_count"], 1);
    assert!(!host.path("success").exists());
}

#[test]
fn hooks_of_a_file_that_others_may_change_are_refused() {
    let host = Host::new();
    host.profile("web", "[hooks]\nbefore = 'touch ran'\n");
    set_mode(&host.path("config/fullbore/web.toml"), 0o666);
    host.run("run web")
        .ends_with(1)
        .has_one_error("another user may change");
    assert!(!host.path("ran").exists());
}

#[test]
fn a_signal_ends_the_run_and_after_still_runs() {
    let host = Host::new();
    // The command waits until it is killed.
    let rest = "steps = ['backup', 'verify']\n[hooks]\nafter = 'cat > after.json'\n";
    let dir = host.dir.path().display();
    let pipe = host.path("src/pipe");
    runs::make_fifo(&pipe);
    let text = format!(
        "repository = '{dir}/repo'\n{rest}[backup]\nstdin-name = 'x'\nstdin-from-command = true\n"
    );
    let text = text.replacen(
        "repository",
        &format!("sources = ['cat', '{}']\nrepository", pipe.display()),
        1,
    );
    write(host.path("config/fullbore/web.toml"), text);
    set_mode(&host.path("config/fullbore/web.toml"), 0o644);
    host.run("init -P web").ends_with(0);
    let mut command = command(args!["run", "web"]);
    command.env("XDG_CONFIG_HOME", host.path("config"));
    command.stderr(std::process::Stdio::piped());
    let child = command.current_dir(host.dir.path()).spawn().unwrap();
    // Its writer opens only when `cat` has it open.
    let writer = fs::OpenOptions::new().write(true).open(&pipe).unwrap();
    shell("kill -TERM $1", args![child.id().to_string()]).ends_with(0);
    let output = child.wait_with_output().unwrap();
    // Its parent sees that it was the signal.
    assert_eq!(output.status.signal(), Some(15));
    let ran = Ran::from(output);
    assert!(ran.err.contains("backup: interrupted"), "{}", ran.err);
    drop(writer);
    let after = host.json("after.json");
    assert_eq!(after["outcome"], "failure", "{}", ran.err);
    assert_eq!(after["steps"].as_array().unwrap().len(), 1);
    assert_eq!(host.backups(), 0);
}

#[test]
fn the_output_of_a_command_is_stored_only_if_it_succeeds() {
    let host = Host::new();
    let backup = |script: &str| {
        let words = args![
            "backup",
            "--to",
            "repo",
            "--stdin-name",
            "db.sql",
            "--stdin-from-command",
            "--",
            "sh",
            "-c",
            script
        ];
        Ran::from(
            command(words)
                .current_dir(host.dir.path())
                .output()
                .unwrap(),
        )
    };
    let good = backup("echo line; echo noted >&2").ends_with(0);
    assert!(
        good.err.contains("noted"),
        "its standard error is shown: {}",
        good.err
    );
    host.run("restore repo --to back").ends_with(0);
    assert_eq!(
        fs::read_to_string(host.path("back/db.sql")).unwrap(),
        "line\n"
    );
    for (script, why) in [
        (
            "head -c 3000000 /dev/zero; exit 3",
            "\"sh\" ended with code 3",
        ),
        ("echo x; kill -9 $$", "signal 9 ended \"sh\""),
        ("exit 1", "\"sh\" ended with code 1"),
        ("true", "empty"),
    ] {
        backup(script).ends_with(1).has_one_error(why);
    }
    assert_eq!(host.backups(), 1);
    for archive in ["x.tar", "x.tar.zst"] {
        let words = args![
            "backup",
            "--to",
            archive,
            "--stdin-name",
            "a",
            "--stdin-from-command",
            "--",
            "sh",
            "-c",
            "echo a; exit 1"
        ];
        Ran::from(
            command(words)
                .current_dir(host.dir.path())
                .output()
                .unwrap(),
        )
        .ends_with(1);
        assert!(!host.path(archive).exists(), "{archive}");
    }
    host.run("backup src --to repo --stdin-name x")
        .ends_with(2)
        .has_one_error("--stdin-from-command");
    host.run("backup --to repo --stdin-name x --stdin-from-command")
        .ends_with(2);
    host.run("backup --to repo --stdin-name x --stdin-from-command -- /no/such")
        .ends_with(1);
}

/// What `config check` says of a profile with these lines above all tables.
fn checked(host: &Host, text: &str) -> Ran {
    write(host.path("config/fullbore/p.toml"), text);
    set_mode(&host.path("config/fullbore/p.toml"), 0o644);
    let home = host.path("home");
    host.run_with("config check p", &[("HOME", home.to_str().unwrap())])
}

#[test]
fn places_of_a_profile_are_whole_paths_or_below_the_home_directory() {
    let host = Host::new();
    let dir = host.path("");
    let dir = dir.to_str().unwrap().trim_end_matches('/');
    for (text, place, why) in [
        (
            "repository = '$HOME/y'",
            "line 1, column 14",
            "knows no variables",
        ),
        (
            "repository = 'disk/y'",
            "line 1, column 14",
            "it is relative",
        ),
        (
            "repository = '~bob/y'",
            "line 1, column 14",
            "only ~/ is known",
        ),
        (
            "repositories = ['/r', 'y']",
            "line 1, column 16",
            "it is relative",
        ),
        (
            "repository = '/r'\nsources = 'srv'",
            "line 2, column 11",
            "it is relative",
        ),
        (
            "repository = '/r'\nkey = 'k'",
            "line 2, column 7",
            "it is relative",
        ),
        (
            "[run]\nmetrics = '$X/m.prom'",
            "line 2, column 11",
            "knows no variables",
        ),
        (
            "repository = ['/a', '/b']",
            "line 1, column 14",
            "repositories = [",
        ),
        (
            "endpoint = 'https://x'",
            "line 1, column 12",
            "storage = [\"endpoint=",
        ),
        (
            "[sync]\nto = '/x'",
            "line 2, column 6",
            "fullbore sync REPO DEST",
        ),
    ] {
        let ran = checked(&host, text).ends_with(2).has_one_error(place);
        assert!(ran.err.contains(why), "{text}: {}", ran.err);
    }
    let hosts = "repository = '/r'\nsources = ['ssh://a/x', 'ssh://b/y']";
    checked(&host, hosts)
        .ends_with(2)
        .has_one_error("cannot back up several hosts in one backup");
    // What is not there now is a warning: a disk may be mounted at night.
    let ran = checked(
        &host,
        "repository = '~/disk'\nsources = ['~/Documents', 'ssh://a/x']",
    );
    let ran = ran.ends_with(2).has_one_error("several hosts");
    drop(ran);
    let ran = checked(&host, "repository = '~/disk'\nsources = '~/Documents'").ends_with(0);
    assert!(
        ran.out.contains(&format!(
            "--to={dir}/home/disk --no-create {dir}/home/Documents"
        )),
        "{}",
        ran.out
    );
    let warnings: Vec<_> = ran.err.lines().collect();
    assert_eq!(warnings.len(), 2, "{}", ran.err);
    assert!(
        warnings[0].contains("home/Documents") && warnings[0].contains("is its disk mounted?"),
        "{}",
        ran.err
    );
    assert!(
        warnings[1].contains("home/disk") && warnings[1].contains("fullbore init"),
        "{}",
        ran.err
    );
    // Paths of another host, and words of a command, are not of this one.
    let command = "repository = '/r'\nsources = ['pg_dump', 'shop']\n[backup]\nstdin-from-command = true\nstdin-name = 'db'";
    checked(&host, command).ends_with(0);
    host.profile("p", "");
    host.run("init -P p").ends_with(0);
    let ran = host.run("config check p --json").ends_with(0);
    let line = ran.json().remove(0);
    assert_eq!(
        (&line["profile"], &line["warnings"]),
        (&"p".into(), &serde_json::json!([]))
    );
    assert_eq!(line["commands"][0]["step"], "backup");
    assert_eq!(line["commands"][0]["words"][1], "backup");
    assert_eq!(ran.err, "");
}

#[test]
fn a_tag_of_a_profile_is_set_and_does_not_hide_older_backups() {
    let host = Host::new();
    host.profile("p", "");
    host.run("init -P p").ends_with(0);
    host.run("backup -P p").ends_with(0);
    host.profile("p", "tag = ['env=prod']\n");
    assert_eq!(host.run("list -P p --json").ends_with(0).json().len(), 1);
    host.run("backup -P p").ends_with(0);
    let listed = host.run("list -P p --json").ends_with(0).json();
    assert_eq!(listed.len(), 2);
    assert_eq!(listed[1]["tags"], serde_json::json!({"env": "prod"}));
}

#[test]
fn a_forget_of_a_profile_names_the_sources_that_it_had_before() {
    let host = Host::new();
    host.profile("p", "[forget]\nkeep-last = 1\n");
    host.run("init -P p").ends_with(0);
    host.run("backup -P p").ends_with(0);
    let said = host.run("forget -P p").ends_with(0).out;
    assert!(!said.contains("no source of this profile"), "{said}");
    write(host.path("other/f"), "f");
    let dir = host.path("");
    let dir = dir.to_str().unwrap().trim_end_matches('/');
    let text =
        format!("repository = '{dir}/repo'\nsources = ['{dir}/other']\n[forget]\nkeep-last = 1\n");
    write(host.path("config/fullbore/p.toml"), text);
    host.run("backup -P p").ends_with(0);
    host.run("backup --to repo --host elsewhere src")
        .ends_with(0);
    let said = host.run("forget -P p").ends_with(0).out;
    let notes: Vec<_> = said
        .lines()
        .filter(|line| line.starts_with("note: "))
        .collect();
    assert_eq!(notes.len(), 1, "{said}");
    assert!(
        notes[0].contains("1 backup of ") && notes[0].contains("/src: no source of this profile"),
        "{said}"
    );
}

#[test]
fn the_units_of_a_repository_in_a_store_read_its_credentials_from_a_file() {
    let host = Host::new();
    let line = "EnvironmentFile=-/etc/fullbore/p.env\n";
    host.profile("p", "");
    assert!(!host.run("systemd p").ends_with(0).out.contains(line));
    let text = "repository = 's3://vault/web'\nsources = '/srv'\n";
    write(host.path("config/fullbore/p.toml"), text);
    let printed = host.run("systemd p").ends_with(0).out;
    assert!(printed.contains(line), "{printed}");
    let units = host.run("systemd p --json").ends_with(0).json().remove(0);
    assert_eq!(units["units"][0]["name"], "fullbore-p.service");
    assert!(units["units"][0]["text"].as_str().unwrap().contains(line));
    assert_eq!(units["directory"], Value::Null);
}

/// The units of a profile, as `systemd-analyze` wants them: the name of the service.
fn units(host: &Host, rest: &str) -> PathBuf {
    host.profile("web", rest);
    host.run("systemd web --to .").ends_with(0);
    host.path("fullbore-web.service")
}

#[test]
fn the_units_of_a_profile_are_right_and_hardened() {
    if !or_skip(has("systemd-analyze"), "there is no systemd-analyze") {
        return;
    }
    let host = Host::new();
    let metrics = format!("metrics = '{}'\n", host.path("web.prom").display());
    for (rest, most) in [("", 3), (&metrics, 3), ("[hooks]\nbefore = 'true'\n", 7)] {
        let service = units(&host, rest);
        let timer = host.path("fullbore-web.timer");
        for unit in [&service, &timer] {
            let line = "systemd-analyze verify --man=no --recursive-errors=no \"$1\"";
            let verified = shell(line, args![unit]).ends_with(0);
            assert_eq!(verified.err, "", "{rest}");
        }
        let line = "systemd-analyze security --offline=true --no-pager --threshold=$2 \"$1\"";
        shell(line, args![service, (most * 10).to_string()]).ends_with(0);
    }
    let text = fs::read_to_string(host.path("fullbore-web.service")).unwrap();
    assert!(
        text.contains(&format!("ReadWritePaths=-{}", host.path("repo").display())),
        "{text}"
    );
    let printed = host.run("systemd web").ends_with(0).out;
    assert!(
        printed.contains("# /etc/systemd/system/fullbore-web.timer\n"),
        "{printed}"
    );
}

/// A document of Kubernetes, as JSON.
fn documents(path: &Path) -> Option<Vec<Value>> {
    let script =
        "import sys, json, yaml\nprint(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))";
    let ran = shell("python3 -c \"$1\" \"$2\"", args![script, path]);
    (ran.code == 0).then(|| serde_json::from_str(&ran.out).unwrap())
}

/// The path of a file that is shipped as an example.
fn example(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib")).join(name)
}

fn has_yaml() -> bool {
    let has_yaml = shell("python3 -c 'import yaml'", args![]).code == 0;
    or_skip(has_yaml, "python3 has no yaml")
}

#[test]
fn the_examples_for_kubernetes_have_the_shape_of_a_cron_job_and_run_commands_that_there_are() {
    if has_yaml() {
        assert_is_cron_job(&example("kubernetes/cronjob.yaml"), "web.toml");
        assert_is_cron_job(&example("kubernetes/cronjob-postgres.yaml"), "db.toml");
    }
}

#[test]
fn the_example_for_compose_runs_a_command_that_there_is() {
    if !has_yaml() {
        return;
    }
    let all = documents(&example("compose/postgres.yaml")).unwrap();
    let service = &all[0]["services"]["backup"];
    let words = service["command"].as_array().unwrap();
    let words: Vec<&str> = words.iter().map(|word| word.as_str().unwrap()).collect();
    let line = words.join(" ").replace("/backup/db", "repo");
    let ran = Host::new().run(&line);
    // The server "db" is not there; the command is understood.
    ran.ends_with(1).has_one_error("could not connect");
}

fn assert_is_cron_job(file: &Path, name: &str) {
    let all = documents(file).unwrap();
    let of_kind = |kind: &str| all.iter().find(|one| one["kind"] == kind).unwrap();
    let job = of_kind("CronJob");
    assert_eq!(job["apiVersion"], "batch/v1");
    assert_eq!(job["spec"]["concurrencyPolicy"], "Forbid");
    assert_eq!(
        job["spec"]["schedule"].as_str().unwrap().split(' ').count(),
        5
    );
    let pod = &job["spec"]["jobTemplate"]["spec"]["template"]["spec"];
    assert!(["Never", "OnFailure"].contains(&pod["restartPolicy"].as_str().unwrap()));
    let container = &pod["containers"][0];
    assert_eq!(
        container["args"],
        serde_json::json!(["run", "--config", format!("/etc/fullbore/{name}")])
    );
    assert!(container["image"].is_string() && container["name"].is_string());
    let volumes: Vec<_> = pod["volumes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|volume| &volume["name"])
        .collect();
    for mount in container["volumeMounts"].as_array().unwrap() {
        assert!(volumes.contains(&&mount["name"]), "{mount}");
        assert!(mount["mountPath"].as_str().unwrap().starts_with('/'));
    }
    // The profile in it is one.
    let host = Host::new();
    let profile = of_kind("ConfigMap")["data"][name].as_str().unwrap();
    write(host.path(name), profile);
    let checked = host
        .run(&format!("config check --config {name}"))
        .ends_with(0)
        .out;
    assert!(
        checked.contains("fullbore backup") && checked.contains("fullbore forget"),
        "{checked}"
    );
}

/// Has this process the rights of root, as the tests of other users' files need?
fn is_root() -> bool {
    or_skip(
        shell("test \"$(id -u)\" = 0", args![]).code == 0,
        "only root can make files of another user",
    )
}

#[test]
fn root_refuses_a_profile_that_another_user_may_change_and_others_are_warned() {
    let host = Host::new();
    host.profile("web", &format!("ssh = '{}'\n", host.path("evil").display()));
    let profile = host.path("config/fullbore/web.toml");
    let dir = host.path("config/fullbore");
    let is_root = is_root();
    for (path, mode, usual) in [(&profile, 0o666, 0o644), (&dir, 0o777, 0o755)] {
        set_mode(path, mode);
        for line in ["list -P web", "config check web", "run web"] {
            let ran = host.run(line);
            let said = "another user may change";
            assert!(ran.err.contains(said), "{line}: {}", ran.err);
            if is_root {
                ran.ends_with(1).has_one_error("cannot read the profile");
            }
        }
        set_mode(path, usual);
    }
    if !is_root {
        return;
    }
    host.run("init -P web").ends_with(0);
    let owned = shell("chown 12345 \"$1\"", args![profile]);
    owned.ends_with(0);
    host.run("list -P web")
        .ends_with(1)
        .has_one_error("cannot read the profile");
}

#[test]
fn hooks_behind_a_link_that_its_owner_exchanges_never_run_as_root() {
    if !is_root() {
        return;
    }
    let host = Host::new();
    host.profile("web", "[hooks]\nbefore = 'touch ran'\n");
    let foreign = host.path("foreign");
    fs::create_dir(&foreign).unwrap();
    let good = host.path("config/fullbore/web.toml");
    fs::copy(&good, foreign.join("bad.toml")).unwrap();
    let line = "{ chown -R 12345 \"$1\" && cd \"$1\" && for i in $(seq 20000); do \
                ln -sfn \"$2\" web.toml; ln -sfn bad.toml web.toml; done; } >/dev/null 2>&1 & echo $!";
    let swapper = shell(line, args![foreign, good]);
    for _ in 0..40 {
        let ran = host.run("run --config foreign/web.toml");
        assert!(ran.code != 0, "{}", ran.err);
    }
    assert!(!host.path("ran").exists());
    shell("kill $1 2>/dev/null; true", args![swapper.out.trim()]);
}

#[test]
fn metrics_are_not_written_through_links() {
    let host = Host::new();
    write(host.path("victim"), "root's own");
    set_mode(&host.path("victim"), 0o600);
    fs::create_dir(host.path("collected")).unwrap();
    std::os::unix::fs::symlink(host.path("victim"), host.path("collected/x.prom")).unwrap();
    host.run("backup src --to repo --metrics collected/x.prom")
        .ends_with(1);
    host.run("backup src --to repo --report collected/x.prom")
        .ends_with(1);
    fs::remove_file(host.path("collected/x.prom")).unwrap();
    // Links for the names that were tried before: FILE and the number of the process.
    let line = "for i in $(seq 400); do ln -s ../victim x.prom.$(($$ + i)); done";
    shell(
        &format!("cd \"$1\" && {line}"),
        args![host.path("collected")],
    )
    .ends_with(0);
    host.run("backup src --to repo --metrics collected/x.prom")
        .ends_with(0);
    assert_eq!(fs::read(host.path("victim")).unwrap(), b"root's own");
    let mode = |name: &str| {
        use std::os::unix::fs::PermissionsExt;
        fs::metadata(host.path(name)).unwrap().permissions().mode() & 0o777
    };
    assert_eq!(mode("victim"), 0o600);
    assert_eq!(mode("collected/x.prom"), 0o644);
    // A directory that another user could have led elsewhere.
    set_mode(&host.path("collected"), 0o777);
    std::os::unix::fs::symlink("../config", host.path("collected/more")).unwrap();
    fs::create_dir_all(host.path("config")).unwrap();
    host.run("backup src --to repo --metrics collected/more/x.prom")
        .ends_with(1);
    assert!(!host.path("config/x.prom").exists());
}

#[test]
fn the_time_of_the_newest_backup_stays_while_the_disk_is_not_there() {
    let host = Host::new();
    host.profile("web", "metrics = 'DIR/web.prom'\n");
    host.run("init -P web").ends_with(0);
    host.run("run web").ends_with(0);
    let newest = || {
        let numbers = fs::read_to_string(host.path("web.prom")).unwrap();
        let mut lines = numbers.lines().map(str::to_owned);
        lines.find(|line| line.starts_with("fullbore_newest_backup_timestamp_seconds{"))
    };
    let before = newest().unwrap();
    for makes_mount_point in [false, true] {
        fs::rename(host.path("repo"), host.path("away")).unwrap();
        if makes_mount_point {
            fs::create_dir(host.path("repo")).unwrap();
        }
        host.run("run web").ends_with(1);
        host.run("backup -P web --no-create").ends_with(1);
        assert_eq!(newest().as_ref(), Some(&before));
        let _ = fs::remove_dir(host.path("repo"));
        fs::rename(host.path("away"), host.path("repo")).unwrap();
    }
}

#[test]
fn a_profile_means_its_own_source_after_its_paths_have_changed() {
    let host = Host::new();
    host.profile("web", "metrics = 'DIR/web.prom'\n");
    host.run("init -P web").ends_with(0);
    host.run("run web").ends_with(0);
    write(host.path("more/b.txt"), "more");
    let dir = host.dir.path().display();
    let text = format!(
        "repository = '{dir}/repo'\nsources = ['{dir}/src', '{dir}/more']\nmetrics = '{dir}/web.prom'\n"
    );
    write(host.path("config/fullbore/web.toml"), text);
    host.run("run web").ends_with(0);
    host.run("cat -P web more/b.txt").ends_with(0);
    host.run("show -P web @latest").ends_with(0);
    host.run("restore -P web --to back").ends_with(0);
    assert!(host.path("back/more/b.txt").exists());
    let numbers = fs::read_to_string(host.path("web.prom")).unwrap();
    let newest = numbers
        .lines()
        .filter(|line| line.starts_with("fullbore_newest_backup_timestamp_seconds{"));
    assert_eq!(newest.count(), 1, "{numbers}");
    // Without the profile the choice is still the user's.
    host.run("show repo").ends_with(2);
}

#[test]
fn bash_completes_the_names_of_profiles() {
    let host = Host::new();
    fs::create_dir_all(host.path("config/fullbore")).unwrap();
    for name in ["night", "nightly-db", "other"] {
        fs::write(
            host.path("config/fullbore").join(format!("{name}.toml")),
            "",
        )
        .unwrap();
    }
    let complete = |words: &str| {
        let script = "source <(\"$1\" completions bash); read -ra COMP_WORDS <<< \"$2\"; \
            COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); \
            _fullbore fullbore \"${COMP_WORDS[-1]}\" \"${COMP_WORDS[-2]}\"; echo \"${COMPREPLY[@]}\"";
        let mut command = std::process::Command::new("bash");
        command.args(["-c", script, "bash", testkit::runs::FULLBORE, words]);
        let ran = command
            .env("XDG_CONFIG_HOME", host.path("config"))
            .output()
            .unwrap();
        assert!(ran.status.success(), "{ran:?}");
        String::from_utf8(ran.stdout).unwrap().trim().to_owned()
    };
    for line in [
        "run ni",
        "systemd ni",
        "config check ni",
        "list -P ni",
        "backup --profile ni",
    ] {
        assert_eq!(
            complete(&format!("fullbore {line}")),
            "night nightly-db",
            "{line}"
        );
    }
    assert_eq!(complete("fullbore systemd ot"), "other");
}
