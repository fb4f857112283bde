//! `fullbore fleet`: which sources are late, grow, were verified, or are damaged.

use crate::runs::{args, fullbore, has, names, or_skip, shell, temp, write};
use fullbore_engine::fleet::{ExpectedBy, Fleet, FleetReport, FleetSource, SourceState};
use fullbore_format::text::columns::width;
use fullbore_repository::select::BackupFilter;
use fullbore_storage::Storages;
use jiff::{SignedDuration, Timestamp};
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

fn back_up(repository: &Path, host: &str, size: usize, more: &[&str]) {
    let source = repository.with_extension("source");
    write(source.join("a"), crate::runs::noise(size as u64, size));
    let (source, to) = (source.to_str().unwrap(), repository.to_str().unwrap());
    let mut words = args(["backup", source, "--to", to, "--quiet", "--host", host]);
    words.extend(args(more));
    fullbore(words).ends_with(0);
}

/// Looks so many days from now.
fn look(repository: &Path, days: i64) -> FleetReport {
    let fleet = Fleet {
        storages: Storages::default(),
        repositories: vec![repository.into()],
        filter: BackupFilter::default(),
        every: None,
        now: Timestamp::now() + SignedDuration::from_hours(24 * days),
    };
    fleet.look().unwrap()
}

fn named<'a>(report: &'a FleetReport, host: &str) -> &'a FleetSource {
    let mut sources = report.sources.iter();
    sources.find(|source| source.source.host == host).unwrap()
}

/// The segments of all backups, oldest first.
fn all_segments(repository: &Path) -> Vec<PathBuf> {
    let backups = repository.join("backups");
    let ids = names(&backups).into_iter();
    let of_backup = |id: String| {
        let dir = backups.join(id);
        let files = names(&dir).into_iter();
        let files = files.filter(|name| name.ends_with(".zst"));
        files.map(|name| dir.join(name)).collect::<Vec<_>>()
    };
    ids.flat_map(of_backup).collect()
}

#[test]
fn a_source_is_late_by_its_own_word_and_the_worst_comes_first() {
    let dir = temp();
    let repository = dir.path().join("r");
    back_up(&repository, "daily", 1000, &["--every", "1d"]);
    back_up(&repository, "weekly", 1000, &["--every", "7d"]);
    back_up(&repository, "gone", 1000, &["--tag", "every=never"]);
    back_up(&repository, "silent", 1000, &[]);
    back_up(&repository, "hourly", 1000, &["--every", "1h"]);
    let states = |days| {
        let report = look(&repository, days);
        let sources = report.sources.iter();
        let late = sources.filter(|source| source.late);
        let names: Vec<_> = late.map(|source| source.source.host.clone()).collect();
        (names.join(" "), report.exit_code())
    };
    assert_eq!(states(0), (String::new(), 0));
    assert_eq!(states(1), ("hourly".to_owned(), 1));
    assert_eq!(states(3), ("hourly daily".to_owned(), 1));
    assert_eq!(states(8), ("hourly daily weekly".to_owned(), 1));
    let report = look(&repository, 3);
    assert_eq!(report.sources[1].source.host, "daily");
    assert_eq!(named(&report, "daily").late_after_seconds, Some(26 * 3600));
    assert_eq!(named(&report, "silent").expected_seconds, None);
    // A later word counts, also of somebody else.
    let newest = named(&report, "hourly").newest.clone();
    let place = format!("{}@{newest}", repository.display());
    fullbore(args(["tag", &place, "every=never"])).ends_with(0);
    assert_eq!(states(3), ("daily".to_owned(), 1));
}

#[test]
fn a_backup_by_hand_does_not_end_the_watch_of_its_source() {
    let dir = temp();
    let repository = dir.path().join("r");
    back_up(&repository, "daily", 1000, &["--every", "1d"]);
    back_up(&repository, "daily", 1001, &[]);
    back_up(&repository, "daily", 1002, &[]);
    let report = look(&repository, 2);
    let source = named(&report, "daily");
    assert_eq!(source.expected_seconds, Some(86_400));
    assert_eq!(source.expected_by, Some(ExpectedBy::Tag));
    assert_eq!((source.state, source.backups), (SourceState::Late, 3));
    // A later tag of an earlier backup counts as well.
    let list = fullbore(args!["list", repository, "--json"]).ends_with(0);
    let second = list.json()[1]["id"].as_str().unwrap().to_owned();
    let second = format!("{}@{second}", repository.display());
    fullbore(args!["tag", second, "every=never"]).ends_with(0);
    let report = look(&repository, 2);
    assert_eq!(named(&report, "daily").expected_seconds, None);
}

#[test]
fn damage_in_the_structure_is_told_until_the_data_was_checked() {
    let dir = temp();
    let repository = dir.path().join("r");
    back_up(&repository, "web", 300_000, &[]);
    let [segment] = &all_segments(&repository)[..] else {
        panic!("one segment");
    };
    let away = segment.with_extension("away");
    fs::rename(segment, &away).unwrap();
    let verify = |option: &str| fullbore(args!["verify", repository, option]);
    verify("-q").ends_with(4);
    let state = || named(&look(&repository, 0), "web").state;
    assert_eq!(state(), SourceState::Damaged);
    fs::rename(&away, segment).unwrap();
    verify("-q").ends_with(0);
    assert_eq!(state(), SourceState::Damaged, "no data was read");
    verify("--data").ends_with(0);
    assert_eq!(state(), SourceState::Sound);
    // Also what a check of one backup finds.
    fs::rename(segment, &away).unwrap();
    let latest = format!("{}@latest", repository.display());
    fullbore(args!["verify", latest, "-q"]).ends_with(4);
    assert_eq!(state(), SourceState::Damaged);
}

#[test]
fn distances_of_backups_teach_what_is_expected_and_content_tells_growth() {
    let dir = temp();
    let repository = dir.path().join("r");
    for size in [1000, 2000, 3000, 5000] {
        back_up(&repository, "web", size, &[]);
    }
    let report = look(&repository, 0);
    let web = named(&report, "web");
    assert_eq!(web.expected_by, Some(ExpectedBy::Distances));
    // They were made within seconds: nobody expects one each second.
    assert_eq!(web.expected_seconds, Some(3600));
    assert_eq!(
        (web.bytes, web.growth_bytes, web.backups),
        (5000, Some(4000), 4)
    );
    back_up(&repository, "web", 1500, &[]);
    let report = look(&repository, 0);
    assert_eq!(named(&report, "web").growth_bytes, Some(500));
}

#[test]
fn damage_comes_before_lateness_and_a_lost_root_or_repository_is_told() {
    let dir = temp();
    let repository = dir.path().join("r");
    back_up(&repository, "late", 1000, &["--every", "1d"]);
    back_up(&repository, "bad", 2000, &["--every", "30d"]);
    let bad = all_segments(&repository).pop().unwrap();
    let mut bytes = fs::read(&bad).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&bad, bytes).unwrap();
    let name = repository.to_str().unwrap();
    fullbore(args(["verify", name, "--data"])).ends_with(4);
    let report = look(&repository, 3);
    let hosts = report
        .sources
        .iter()
        .map(|source| (&*source.source.host, source.state));
    let wanted = [("bad", SourceState::Damaged), ("late", SourceState::Late)];
    assert_eq!(hosts.collect::<Vec<_>>(), wanted);
    assert_eq!(report.exit_code(), 4);
    assert_eq!(named(&report, "late").verified_share, 1.0);
    assert_eq!(named(&report, "bad").damaged_backups, 1);
    fs::write(bad.with_file_name("root.json"), "{").unwrap();
    let ran = fullbore(args(["fleet", name, "--host", "late"])).ends_with(4);
    assert!(ran.out.contains("1 backup of"), "{}", ran.out);
    let good = dir.path().join("good");
    back_up(&good, "web", 1000, &[]);
    let nothing = dir.path().join("nothing");
    let places = [&good, &nothing].map(|place| place.to_str().unwrap());
    let ran = fullbore(args(["fleet", places[0], places[1]])).ends_with(1);
    assert!(
        ran.out.contains("web:") && ran.err.contains("nothing"),
        "{}",
        ran.err
    );
}

#[test]
fn only_roots_are_read() {
    let dir = temp();
    let repository = dir.path().join("r");
    back_up(&repository, "web", 1000, &["--every", "1d"]);
    back_up(&repository, "web", 3000, &[]);
    let name = repository.to_str().unwrap();
    fullbore(args(["verify", name, "--data"])).ends_with(0);
    let before = look(&repository, 0);
    for segment in all_segments(&repository) {
        fs::write(segment.with_file_name("manifest"), "").unwrap();
        fs::write(segment, "").unwrap();
    }
    let after = look(&repository, 0);
    let facts = |report: &FleetReport| {
        let web = named(report, "web");
        (
            web.growth_bytes,
            web.verified_share,
            web.newest.clone(),
            web.stored_bytes,
        )
    };
    assert_eq!(facts(&after), facts(&before));
}

#[test]
fn the_table_fits_80_columns_and_is_whole_in_a_pipe() {
    let dir = temp();
    let repository = dir.path().join("r");
    let host = "数据库服务器一号".repeat(3);
    back_up(&repository, &host, 1000, &[]);
    back_up(&repository, "web", 1000, &["--every", "7d"]);
    let name = repository.to_str().unwrap();
    let piped = fullbore(args(["fleet", name])).ends_with(0).out;
    assert!(piped.contains(&host) && !piped.contains('…'), "{piped}");
    let json = fullbore(args(["fleet", name, "--json"]))
        .ends_with(0)
        .json();
    let kinds: Vec<_> = json
        .iter()
        .map(|line| line["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["repository", "source", "source", "result"]);
    if !or_skip(has("script"), "there is no program script") {
        return;
    }
    let line =
        "script -qec \"stty cols 80; export NO_COLOR=1; $1 fleet $2 && $1 fleet -l $2\" /dev/null";
    let shown = shell(line, args([testkit::runs::FULLBORE, name])).out;
    let (table, long) = shown.split_once("2 sources").unwrap();
    let lines: Vec<&str> = table.lines().map(str::trim_end).collect();
    assert_eq!(lines.len(), 3, "{shown}");
    assert!(lines.iter().all(|line| width(line) <= 80), "{shown}");
    assert!(lines[1].contains('…') || lines[2].contains('…'), "{shown}");
    assert!(!shown.contains('\x1b'), "{shown:?}");
    // The last column begins in the same place in each line.
    let begins = lines.iter().map(|line| {
        let state = line.rsplit(' ').next().unwrap();
        width(line) - width(state)
    });
    let begins: Vec<usize> = begins.collect();
    assert!(begins.iter().all(|begin| *begin == begins[0]), "{shown}");
    assert!(long.contains(&host) && long.contains("newest 20"), "{long}");
}

#[test]
fn the_numbers_of_each_source_are_written_and_a_lost_repository_keeps_its_own() {
    let dir = temp();
    let [one, two] = ["one", "two"].map(|name| dir.path().join(name));
    back_up(&one, "web", 1000, &[]);
    back_up(&two, "db", 2000, &[]);
    let file = dir.path().join("fleet.prom");
    let names = [&one, &two, &file].map(|path| path.to_str().unwrap());
    let words = [
        "fleet",
        names[0],
        names[1],
        "--every",
        "1s",
        "--quiet",
        "--metrics",
        names[2],
    ];
    std::thread::sleep(Duration::from_millis(3100));
    let ran = fullbore(args(words)).ends_with(1);
    assert_eq!(ran.out, "");
    let late = |host: &str| {
        let text = fs::read_to_string(&file).unwrap();
        let of_host = format!("source=\"{host}:");
        let mut lines = text.lines();
        let line =
            lines.find(|line| line.starts_with("fullbore_source_late{") && line.contains(&of_host));
        line.map(|line| line.ends_with(" 1"))
    };
    assert_eq!((late("web"), late("db")), (Some(true), Some(true)));
    fs::remove_dir_all(&two).unwrap();
    fullbore(args([
        "fleet",
        names[0],
        names[1],
        "--quiet",
        "--metrics",
        names[2],
    ]))
    .ends_with(1);
    assert_eq!((late("web"), late("db")), (Some(false), Some(true)));
    fullbore(args(["fleet", names[0], "--quiet", "--metrics", names[2]])).ends_with(0);
    assert_eq!((late("web"), late("db")), (Some(false), None));
}
