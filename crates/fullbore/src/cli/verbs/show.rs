//! `fullbore show`: prints the facts of one backup, without its entries.

use super::listing::{BackupLine, TableBackup};
use crate::cli::{
    options::EXIT_CODES,
    output::{printed_within, terminal_columns},
    report,
    select::SelectArgs,
};
use clap::Args;
use fullbore_engine::verify::stream::{self, InspectedInput, look};
use fullbore_format::text::{local_time::local_second, source_text};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root::{ClusterInfo, Live, MAX_NOT_CAPTURED, Root, Tablespace},
    sizes, text,
};
use fullbore_repository::{
    annotations::Annotations, open::place, roots::put_key_of, select::BackupFilter,
};
use fullbore_storage::Storages;
use serde_json::Value;
use std::{ffi::OsString, io::Write};

/// `fullbore show`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(in crate::cli) struct ShowArgs {
    /// A repository, archive or -, with @ID, @latest, @2026-11-25 or @2d
    ///
    /// Standard input is read for -. @BACKUP chooses one backup of a repository: an id, latest, latest~1,
    /// 2026-11-25 or 2d.
    #[arg(value_name = "REPO[@BACKUP]")]
    from: OsString,
    #[command(flatten)]
    select: SelectArgs,
    #[arg(from_global)]
    json: bool,
}

pub(in crate::cli) fn run(args: ShowArgs, storages: &Storages) -> Result<u8> {
    let filter = args.select.clone().filter(&args.from, true)?;
    let columns = terminal_columns().filter(|_| !args.json);
    printed_within(columns, |out| {
        print_facts(storages, &args, &filter, out).map(|()| 0)
    })
}

/// Prints the facts to `out`.
///
/// # Errors
/// Those of opening the backup, and of `out`.
fn print_facts(
    storages: &Storages,
    args: &ShowArgs,
    filter: &BackupFilter,
    out: &mut dyn Write,
) -> Result<()> {
    let (root, objects) = match look(storages, &args.from, filter)? {
        InspectedInput::Stream(input) => (stream::root(input)?, None),
        InspectedInput::Backup(archive) if archive.is_one_file() => (archive.root, None),
        InspectedInput::Backup(archive) => {
            let objects = place(&args.from).and_then(|(location, _)| storages.objects(&location));
            // Facts beside the backup are left out if its repository does not open again.
            (archive.root, objects.ok())
        }
    };
    let notes = objects
        .as_ref()
        .and_then(|objects| Annotations::read(&**objects, &root.id).ok());
    let put_key = objects.and_then(|objects| put_key_of(&*objects, &root.id));
    let pinned = notes.as_ref().is_some_and(|notes| notes.pinned);
    if args.json {
        return text::json(out, &shown(root, pinned, put_key)?);
    }
    let pin = pinned.then(|| ("pinned", "yes, it is never forgotten".to_owned()));
    let keyless = notes.and_then(|notes| notes.keyless_line());
    let keyless = keyless.map(|line| ("without key", line));
    let put_key = put_key.map(|name| ("put key", name));
    let facts = fact_lines(&root).into_iter();
    for (name, value) in facts.chain(put_key).chain(pin).chain(keyless) {
        text::line(out, &format!("{name:<13} {value}"))?;
    }
    print_segments(&root, out)?;
    print_not_captured(&root, out)
}

/// Returns the line that `list` prints for the backup, with its root.
fn shown(root: Root, pinned: bool, put_key: Option<String>) -> Result<Value> {
    let bug = |e| Error::new(ErrorKind::Bug, "cannot write JSON").because(e);
    let document = serde_json::to_value(&root).map_err(bug)?;
    let id = root.id.clone();
    let backup = Ok(TableBackup {
        root,
        pinned,
        loss: None,
        put_key,
    });
    let mut line = serde_json::to_value(BackupLine::new(&id, &backup)).map_err(bug)?;
    line["root"] = document;
    Ok(line)
}

fn fact_lines(root: &Root) -> Vec<(&'static str, String)> {
    let left_out = root
        .left_out
        .iter()
        .map(|option| ("left out by", text::name(option.as_bytes())));
    let tags = root
        .tags
        .iter()
        .map(|(key, value)| ("tag", report::tag(key, value)));
    let writer = format!(
        "{}, format {}",
        text::name(root.tool.as_bytes()),
        root.format
    );
    let mut facts = vec![
        ("backup", root.id.clone()),
        ("source", source_text(&root.source)),
        ("started", local_second(&root.time)),
        ("finished", local_second(&root.finished)),
        ("written by", writer),
    ];
    facts.extend(option_lines(root));
    facts.extend(total_lines(root));
    facts.extend(root.bases.iter().map(|base| ("base", base.clone())));
    facts.extend(reference_lines(root));
    facts.extend(root.postgres.iter().flat_map(cluster));
    if !root.run.limit.is_empty() {
        let limit = text::name(root.run.limit.as_bytes());
        facts.push(("limit", format!("{limit}, {:.1} seconds", root.run.seconds)));
    }
    facts.extend(left_out.chain(tags));
    facts
}

fn option_lines(root: &Root) -> [(&'static str, String); 3] {
    let options = &root.options;
    let levels = text::levels(&root.run.levels);
    let used = levels.map_or_else(String::new, |levels| format!(", {levels}"));
    let frames = format!(
        "{} plain bytes, blocks of {}",
        text::binary_bytes(options.frame_bytes),
        text::binary_bytes(options.block_bytes)
    );
    [
        (
            "codec",
            format!("{}, level {}{used}", options.codec, options.level),
        ),
        ("frames", frames),
        ("digest", format!("{:?}", options.digest).to_lowercase()),
    ]
}

fn total_lines(root: &Root) -> [(&'static str, String); 6] {
    let totals = &root.totals;
    // A backup that refers to others stores only new data, so that a ratio would mislead.
    let ratio = if root.bases.is_empty() && root.referenced_backups().is_empty() {
        let ratio = totals.bytes as f64 / totals.stored_bytes.max(1) as f64;
        format!(", ratio {ratio:.2}")
    } else {
        String::new()
    };
    let stored = format!(
        "{} in {}{ratio}",
        text::bytes(totals.stored_bytes),
        text::counted(root.segments.len() as u64, "segment")
    );
    [
        ("entries", text::count(totals.entries)),
        ("files", text::count(totals.files)),
        ("directories", text::count(totals.directories)),
        ("content", text::bytes(totals.bytes)),
        ("stored", stored),
        ("pages", text::count(root.pages.len() as u64)),
    ]
}

/// Describes the references to each other backup, and the storage kept for them.
fn reference_lines(root: &Root) -> Vec<(&'static str, String)> {
    let others = root.referenced_backups();
    if others.is_empty() {
        return Vec::new();
    }
    let kept = text::counted(root.totals.kept, "file");
    let kept_bytes = text::bytes(root.totals.kept_bytes);
    let all = ReferredBytes::new(root, None);
    // A root without live bytes would divide by zero.
    let times = all.stored as f64 / (all.live as f64).max(1.0);
    let mut facts = vec![(
        "unchanged",
        format!("{kept}, {kept_bytes} of content were not stored again"),
    )];
    facts.extend(
        others
            .into_iter()
            .map(|backup| ("refers to", reference_line(root, backup))),
    );
    let live = text::bytes(all.live);
    let stored = text::bytes(all.stored);
    facts.push((
        "amplification",
        format!("{times:.2}: {stored} of segments are kept for {live} of referred data"),
    ));
    facts
}

/// Describes the references to one other backup.
fn reference_line(root: &Root, backup: &str) -> String {
    let referred = ReferredBytes::new(root, Some(backup));
    let pages = root.pages.iter().filter(|page| page.backup == backup);
    let live = text::bytes(referred.live);
    let stored = text::bytes(referred.stored);
    let segments = text::counted(referred.segments, "segment");
    let pages = text::counted(pages.count() as u64, "page");
    format!("{backup}: {live} of {stored} in {segments}, and {pages}")
}

/// The segments of other backups that a backup refers to.
#[derive(Default)]
struct ReferredBytes {
    /// Bytes that the backup refers to.
    live: u64,
    /// Bytes of the segments, which are kept for them.
    stored: u64,
    segments: u64,
}

impl ReferredBytes {
    /// Sums up the segments of one backup, or of all.
    fn new(root: &Root, backup: Option<&str>) -> Self {
        let is_wanted = |live: &&Live| backup.is_none_or(|backup| live.backup == backup);
        root.liveness
            .iter()
            .filter(is_wanted)
            .fold(Self::default(), |sum, live| {
                // 0 is unknown: then the whole segment counts.
                let segment = match live.data_bytes {
                    0 => live.of_bytes,
                    data_bytes => data_bytes,
                };
                Self {
                    live: sum.live.saturating_add(live.bytes),
                    stored: sum.stored.saturating_add(segment.max(live.bytes)),
                    segments: sum.segments + 1,
                }
            })
    }
}

fn cluster(cluster: &ClusterInfo) -> Vec<(&'static str, String)> {
    let state = match (cluster.online, cluster.standby) {
        (false, _) => "shut down",
        (true, false) => "primary",
        (true, true) => "standby",
    };
    let sums = if cluster.checksums { "with" } else { "without" };
    let mut facts = vec![
        (
            "PostgreSQL",
            format!(
                "{}, {state}, {sums} page checksums",
                text::name(cluster.version.as_bytes())
            ),
        ),
        (
            "system",
            format!(
                "{}, timeline {}",
                text::name(cluster.system_identifier.as_bytes()),
                cluster.timeline
            ),
        ),
    ];
    if cluster.online {
        let start = &cluster.start_lsn;
        let stop = &cluster.stop_lsn;
        let segments = cluster.wal_segments.join(" to ");
        let wal = format!("from {start} to {stop}, {}: {segments}", cluster.wal);
        facts.push(("WAL", text::name(wal.as_bytes())));
    }
    facts.extend(
        cluster
            .configuration
            .iter()
            .map(|path| ("not included", text::name(&path.0))),
    );
    facts.extend(
        cluster
            .unlisted
            .iter()
            .map(|path| ("not listed", text::name(&path.0))),
    );
    facts.extend(
        cluster
            .tablespaces
            .iter()
            .map(|space| ("tablespace", tablespace_line(space))),
    );
    facts.extend(
        cluster
            .tablespaces_meanwhile
            .iter()
            .map(|space| ("created later", tablespace_line(space))),
    );
    facts.extend(cluster.databases.iter().map(|database| {
        (
            "database",
            format!("{} {}", database.oid, text::name(&database.name.0)),
        )
    }));
    facts
}

fn tablespace_line(space: &Tablespace) -> String {
    let name = text::name(&space.name.0);
    let location = text::name(&space.location.0);
    format!("{} {name} at {location}", space.oid)
}

fn print_segments(root: &Root, out: &mut dyn Write) -> Result<()> {
    text::line(out, "")?;
    for segment in &root.segments {
        let (bytes, plain) = (text::bytes(segment.bytes), text::bytes(segment.plain_bytes));
        let name = format!("s{:02}-{:06}", segment.stream, segment.number);
        text::line(
            out,
            &format!(
                "segment {name}  {bytes:>10} from {plain:>10} in {} frames",
                segment.frames
            ),
        )?;
    }
    Ok(())
}

fn print_not_captured(root: &Root, out: &mut dyn Write) -> Result<()> {
    let totals = &root.totals;
    let all = sizes::sum([
        totals.unreadable,
        totals.vanished,
        totals.changed,
        totals.bad_pages,
    ]);
    let counts = [
        ("unreadable", totals.unreadable),
        ("vanished", totals.vanished),
        ("changed", totals.changed),
        ("with wrong page checksums", totals.bad_pages),
    ];
    let counts: Vec<String> = counts
        .iter()
        .map(|(word, n)| format!("{} {word}", text::count(*n)))
        .collect();
    text::line(
        out,
        &format!("\nnot captured as they were: {}", counts.join(", ")),
    )?;
    for entry in &root.not_captured {
        text::line(
            out,
            &format!(
                "  {}: {}",
                text::name(&entry.path.0),
                text::name(entry.reason.as_bytes())
            ),
        )?;
    }
    // The root names only the first of them.
    if all as usize > root.not_captured.len() && root.not_captured.len() >= MAX_NOT_CAPTURED {
        text::line(out, "  `fullbore list` shows all of them")?;
    }
    Ok(())
}
