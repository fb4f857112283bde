//! `schedule` with a program in the place of systemctl, and `status`.

use crate::runs::{self, Ran, command, fullbore, has, or_skip, shell, temp, write};
use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

/// A systemctl that notes its words; the file `state` has what it says of systemd.
const SYSTEMCTL: &str = "#!/bin/sh
here=${0%/*}
echo \"$@\" >> \"$here/said\"
case \"$*\" in
*is-system-running) cat \"$here/state\" ;;
*enable*) test ! -e \"$here/refuses\" || { echo 'Unit is masked.' >&2; exit 1; } ;;
esac
";

/// A home directory with a repository of it, and a systemctl.
struct Host {
    dir: tempfile::TempDir,
}

impl Host {
    fn new() -> Self {
        let host = Self { dir: temp() };
        write(host.path("bin/systemctl"), SYSTEMCTL);
        runs::set_mode(&host.path("bin/systemctl"), 0o755);
        write(host.path("bin/state"), "running\n");
        write(host.path("home/ana/my letters/one"), "Dear Ben");
        let home = host.path("home/ana");
        host.run(args!["backup", home, "--to", host.path("disk"), "-q"])
            .ends_with(0);
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn run(&self, args: impl IntoIterator<Item = OsString>) -> Ran {
        self.command(args).output().unwrap().into()
    }

    fn command(&self, args: impl IntoIterator<Item = OsString>) -> Command {
        let mut command = command(args);
        let path = format!(
            "{}:{}",
            self.path("bin").display(),
            std::env::var("PATH").unwrap()
        );
        command.env("PATH", path).current_dir(self.dir.path());
        command.env("XDG_CONFIG_HOME", self.path("config"));
        command.env("FULLBORE_STATE_DIR", self.path("state"));
        command
    }

    /// A line of words, of which $HOME and $DISK are the two directories.
    fn schedule(&self, line: &str) -> Ran {
        let words = line.split(' ').map(|word| match word {
            "$HOME" => self.path("home/ana").into_os_string(),
            "$DISK" => self.path("disk").into_os_string(),
            word => word.into(),
        });
        self.run(args!["schedule", "--user"].into_iter().chain(words))
    }

    fn units(&self) -> PathBuf {
        self.path("config/systemd/user")
    }

    fn said(&self) -> String {
        fs::read_to_string(self.path("bin/said")).unwrap_or_default()
    }
}

/// The only unit of a kind.
fn unit(dir: &Path, kind: &str) -> (String, String) {
    let mut names = runs::names(dir);
    names.retain(|name| name.ends_with(kind));
    assert_eq!(names.len(), 1, "{names:?}");
    let text = fs::read_to_string(dir.join(&names[0])).unwrap();
    (names.pop().unwrap(), text)
}

#[test]
fn a_schedule_is_written_enabled_listed_and_ended() {
    let host = Host::new();
    let ran = host.schedule("daily $HOME --to $DISK").ends_with(0);
    assert!(
        ran.out.starts_with("scheduled daily: backup "),
        "{}",
        ran.out
    );
    let (timer, text) = unit(&host.units(), ".timer");
    assert!(text.contains("\nOnCalendar=daily\n") && text.contains("\nPersistent=yes\n"));
    let said = host.said();
    assert!(said.contains("--user daemon-reload\n"), "{said}");
    assert!(said.contains(&format!("--user enable {timer}\n")), "{said}");
    let (_, service) = unit(&host.units(), ".service");
    let disk = host.path("disk").display().to_string();
    let home = host.path("home/ana").display().to_string();
    let words = format!(" backup --no-create --every 1d {home} --to {disk}\n");
    assert!(service.contains(&words), "{service}");
    // Another interval of the same backup replaces the first one.
    host.schedule("weekly $HOME --to $DISK").ends_with(0);
    let (_, text) = unit(&host.units(), ".timer");
    assert!(text.contains("\nOnCalendar=weekly\n"), "{text}");
    let listed = host.run(args!["schedule", "--user"]).ends_with(0).out;
    let name = timer.strip_prefix("fullbore-schedule-").unwrap();
    let name = name.strip_suffix(".timer").unwrap();
    assert!(
        listed.starts_with(name) && listed.contains(" weekly "),
        "{listed}"
    );
    assert!(
        listed.ends_with(&format!("backup {home} --to {disk}\n")),
        "{listed}"
    );
    host.schedule("off nothing")
        .ends_with(1)
        .has_one_error("the schedule \"nothing\"");
    host.schedule(&format!("off {name}")).ends_with(0);
    assert_eq!(runs::names(&host.units()), [""; 0]);
    assert!(
        host.said()
            .contains(&format!("--user disable --now {timer}\n"))
    );
}

#[test]
fn the_command_of_the_service_makes_the_backup() {
    let host = Host::new();
    // A relative path is that of the directory in which it was typed.
    host.schedule("hourly home/ana --to disk --tag by=timer")
        .ends_with(0);
    let (name, service) = unit(&host.units(), ".service");
    if or_skip(has("systemd-analyze"), "there is no systemd-analyze") {
        for unit in [name.clone(), name.replace(".service", ".timer")] {
            let line = "systemd-analyze verify --man=no --recursive-errors=no \"$1\"";
            let ran = shell(line, args![host.units().join(unit)]).ends_with(0);
            assert_eq!(ran.err, "");
        }
    }
    let setting = |name: &str| {
        let found = service.lines().find_map(|line| line.strip_prefix(name));
        found
            .unwrap_or_else(|| panic!("{name}: {service}"))
            .to_owned()
    };
    let line = format!(
        "cd '{}' && {}",
        setting("WorkingDirectory="),
        setting("ExecStart=")
    );
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", &line])
        .env("FULLBORE_STATE_DIR", host.path("state"));
    assert!(command.current_dir("/").output().unwrap().status.success());
    let list = host
        .run(args!["list", host.path("disk"), "--json"])
        .ends_with(0)
        .json();
    assert_eq!(list.len(), 2);
    assert_eq!(list[1]["tags"]["by"], "timer");
    assert_eq!(list[1]["tags"]["every"], "1h");
}

#[test]
fn nothing_is_scheduled_that_could_not_run() {
    let host = Host::new();
    for (line, code, words) in [
        ("daily $HOME", 2, "--to <DEST>"),
        ("daily $HOME --to $DISK --nonsense", 2, "--nonsense"),
        (
            "daily home/ben --to $DISK",
            1,
            "could not find the source \"home/ben\"",
        ),
        (
            "daily $HOME --to unplugged",
            1,
            "could not find a repository at",
        ),
        ("daily $HOME --to $DISK -n", 2, "stores nothing"),
    ] {
        host.schedule(line).ends_with(code).has_one_error(words);
    }
    let mut with_key = host.command(args![
        "schedule",
        "--user",
        "daily",
        host.path("home/ana"),
        "--to",
        host.path("disk")
    ]);
    let ran = Ran::from(with_key.env("FULLBORE_KEY", "/k").output().unwrap());
    ran.ends_with(2)
        .has_one_error("a timer does not have FULLBORE_KEY");
    write(host.path("bin/refuses"), "");
    let ran = host.schedule("daily $HOME --to $DISK").ends_with(1);
    ran.has_one_error("Unit is masked.");
    assert_eq!(runs::names(&host.units()), [""; 0]);
    let ran = host.run(args!["schedule", "--user"]).ends_with(0);
    assert!(
        ran.out.is_empty() && ran.err.contains("nothing is scheduled"),
        "{}",
        ran.err
    );
}

/// A schedule that cannot be changed goes on as it was.
#[test]
fn a_schedule_survives_one_that_is_refused() {
    let host = Host::new();
    host.schedule("daily $HOME --to $DISK").ends_with(0);
    let before = [unit(&host.units(), "timer"), unit(&host.units(), "service")];
    write(host.path("bin/refuses"), "");
    host.schedule("weekly $HOME --to $DISK").ends_with(1);
    let after = [unit(&host.units(), "timer"), unit(&host.units(), "service")];
    assert_eq!(before, after);
}

#[test]
fn without_systemd_the_lines_of_a_crontab_are_told_at_noon_and_after_each_start() {
    let host = Host::new();
    write(host.path("bin/state"), "offline\n");
    let ran = host.schedule("daily $HOME --to $DISK").ends_with(1);
    let ran = ran.has_one_error("no systemd runs here");
    let line = ran
        .err
        .lines()
        .find_map(|line| line.trim().strip_prefix("0 12 * * * "));
    let line = line.unwrap_or_else(|| panic!("{}", ran.err));
    let again = format!("@reboot sleep 300; {line}");
    assert!(ran.err.contains(&again), "{}", ran.err);
    assert!(!host.units().exists());
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", line])
        .env("FULLBORE_STATE_DIR", host.path("state"));
    assert!(command.output().unwrap().status.success(), "{line}");
    let list = host
        .run(args!["list", host.path("disk"), "--json"])
        .ends_with(0)
        .json();
    assert_eq!(list.len(), 2);
}

#[test]
fn a_profile_is_scheduled_by_its_name_or_file() {
    let host = Host::new();
    let profile = host.path("web site.toml");
    let text = format!(
        "repository = {:?}\nsources = [{:?}]\n",
        host.path("disk"),
        host.path("home/ana")
    );
    write(&profile, text);
    let args = args!["schedule", "--user", "daily", "--config", profile];
    host.run(args).ends_with(0);
    let (name, service) = unit(&host.units(), ".service");
    assert!(name.starts_with("fullbore-schedule-website-"), "{name}");
    let words = format!(" run --config {profile:?}\n");
    assert!(service.contains(&words), "{service}");
}

/// Makes a remembered backup older.
fn make_old(host: &Host, time: &str) {
    let file = runs::only(&host.path("state/last-backups"));
    let text = fs::read_to_string(&file).unwrap();
    let mut backup: serde_json::Value = serde_json::from_str(&text).unwrap();
    backup["time"] = time.into();
    fs::write(file, backup.to_string()).unwrap();
}

#[test]
fn status_is_silent_until_a_backup_is_late_and_needs_no_repository() {
    let host = Host::new();
    let status = |words: &[&str]| {
        let words = words.iter().map(OsString::from);
        host.run(args!["status"].into_iter().chain(words))
    };
    let ran = status(&[]).ends_with(0);
    assert_eq!((&*ran.out, &*ran.err), ("", ""));
    make_old(&host, "2026-01-01T00:00:00Z");
    // The disk is away, and only the memory is read.
    fs::rename(host.path("disk"), host.path("drawer")).unwrap();
    let start = Instant::now();
    let ran = status(&[]).ends_with(1);
    assert!(start.elapsed() < Duration::from_secs(2));
    let home = host.path("home/ana").display().to_string();
    assert_eq!(ran.out, "");
    assert!(
        ran.err.starts_with("warning: the last backup of "),
        "{}",
        ran.err
    );
    assert!(ran.err.contains(&format!(":{home} is ")), "{}", ran.err);
    assert!(
        ran.err.contains(host.path("disk").to_str().unwrap()),
        "{}",
        ran.err
    );
    assert_eq!(status(&["-q"]).ends_with(1).err, "");
    status(&["--late", "99999d"]).ends_with(0);
    let json = status(&["--json"]).ends_with(1).json();
    assert_eq!(json[0]["late"], true);
    assert_eq!(json[1]["late_sources"], 1);
    // A source that is gone is not reminded of.
    let source = json[0]["source_text"].as_str().unwrap();
    status(&["--forget", source]).ends_with(0);
    status(&["--forget", source])
        .ends_with(1)
        .has_one_error("in the memory of this host");
    assert_eq!(status(&["-v"]).ends_with(0).out, "");
}

#[test]
fn a_scheduled_source_is_late_after_twice_its_time_and_a_backup_of_nothing_does_not_count() {
    let host = Host::new();
    let (home, disk) = (host.path("home/ana"), host.path("disk"));
    host.run(args!["backup", home, "--to", disk, "--every", "1s", "-q"])
        .ends_with(0);
    std::thread::sleep(Duration::from_millis(3100));
    let ran = host.run(args!["status"]).ends_with(1);
    assert!(ran.err.contains("one is expected every 1s"), "{}", ran.err);
    // Without files, to nowhere and to a stream.
    fs::rename(&home, host.path("away")).unwrap();
    fs::create_dir(&home).unwrap();
    host.run(args!["backup", home, "--to", disk, "-q"])
        .ends_with(0);
    host.run(args!["backup", host.path("away"), "--to", "null:", "-q"])
        .ends_with(0);
    host.run(args!["backup", host.path("away"), "--to", "-", "-q"])
        .ends_with(0);
    host.run(args!["status"]).ends_with(1);
    let known = host.run(args!["status", "--json"]).json();
    assert_eq!(known.len(), 2);
    fs::remove_dir(&home).unwrap();
    fs::rename(host.path("away"), &home).unwrap();
    host.run(args!["backup", home, "--to", disk, "-q"])
        .ends_with(0);
    host.run(args!["status", "--late", "1m"]).ends_with(0);
    let ran = fullbore(args!["status", "-h"]).ends_with(0);
    assert!(ran.out.contains("~/.profile"), "{}", ran.out);
}
