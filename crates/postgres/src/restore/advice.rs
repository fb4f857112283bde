//! Notes about the recovery of a restored server: what it will lack, and which other servers it can
//! harm.

use super::recovery::{Mode, Recovery, RecoveryFacts, RecoveryOptions};
use crate::timeline::TimelineFork;
use fullbore_format::{
    error::{Error, ErrorKind, quoted},
    root::ClusterInfo,
};

/// Setting: subscriptions that the server runs at the same time.
const APPLY_WORKERS: &str = "max_logical_replication_workers";
/// Note: two servers write on the same timeline.
const SAME_TIMELINE_NOTE: &str = "the server will continue on the timeline of the backup, and \
    archive (archive_mode): its WAL can collide with that of the original server; for a copy, use \
    --set archive_mode=off; to replace that server, --target-immediate \
    --target-action promote begins a timeline of its own";
/// Note: recovery from an archive follows the latest timeline there, whichever server wrote it.
const NEW_TIMELINE_NOTE: &str = "once open, the server will archive a timeline of its own \
    (archive_mode), and later recoveries from that archive will follow it: right if it replaces \
    the original server; for a copy, use --set archive_mode=off";

/// Returns a note on WAL or connections that the server will need and not have.
///
/// `follows` is true if its configuration names an archive or a primary; `is_all` is true if the
/// backup has all of the configuration.
pub(crate) fn lacking_note(
    mode: Mode,
    cluster: &ClusterInfo,
    follows: bool,
    is_all: bool,
) -> Option<String> {
    let included = !cluster.online || cluster.wal == "included";
    let note = match mode {
        Mode::None if !included => {
            "the WAL is not in the backup, and without --recovery point the server does not ask \
                the archive for it"
        }
        Mode::Standby if !follows && !is_all => {
            "neither primary_conninfo nor restore_command was found, but not all of the \
                configuration is in the backup: unless \
             the rest sets one, the standby has nothing to follow"
        }
        Mode::Standby if !follows => {
            "neither primary_conninfo nor restore_command was found in the backup: the standby \
                has nothing to follow"
        }
        _ => return None,
    };
    Some(note.to_owned())
}

/// Returns the error for a recovery to a point without `restore_command`: the server would not
/// start.
pub(crate) fn no_restore_command(options: &RecoveryOptions, cluster: &ClusterInfo) -> Error {
    let message = "cannot recover to a point: without restore_command the server cannot fetch WAL, \
        and does not start";
    let is_included = !cluster.online || cluster.wal == "included";
    let or_not = if is_included && options.ends_with_the_backup() {
        ", or --restore-command false if the WAL in the backup is enough"
    } else {
        ""
    };
    Error::new(ErrorKind::Usage, message).hint(format!(
        "set it with --restore-command CMD, as in --restore-command 'cp /archive/%f %p'{or_not}"
    ))
}

/// Returns the step to provide WAL by hand, for a server that does not use the archive.
pub(crate) fn wal_step(recovery: &Recovery, cluster: &ClusterInfo) -> Option<String> {
    let is_lacking = cluster.online && cluster.wal != "included" && recovery.signal.is_none();
    let wal = match &cluster.wal_segments[..] {
        [first, .., last] if first != last => format!("{first} to {last}"),
        [first, ..] => first.clone(),
        [] => format!("from {} on", cluster.start_lsn),
    };
    is_lacking.then(|| {
        format!(
            "put the WAL {wal} into \"pg_wal\", or restore again with --recovery point \
            --restore-command CMD: without it the server does not start"
        )
    })
}

/// Returns a note if the server will run the same subscriptions as the original server.
pub(crate) fn subscriptions_note(
    options: &RecoveryOptions,
    cluster: &ClusterInfo,
) -> Option<String> {
    let is_set = options
        .settings
        .iter()
        .any(|(name, _)| name == APPLY_WORKERS);
    let count: u64 = cluster
        .databases
        .iter()
        .map(|database| u64::from(database.subscriptions))
        .sum();
    (count > 0 && !is_set).then(|| {
        format!(
            "the databases have logical subscriptions ({count}): once the server is open for \
                writing, it takes the changes meant for the original server; --set \
                {APPLY_WORKERS}=0 prevents this"
        )
    })
}

/// Returns a note for each tablespace that recovery will make at its old location, whatever the
/// restore does.
pub(crate) fn new_tablespace_notes(cluster: &ClusterInfo) -> impl Iterator<Item = String> {
    cluster.tablespaces_meanwhile.iter().map(|space| {
        let name = quoted(&space.name.0);
        let location = quoted(&space.location.0);
        format!(
            "tablespace {name} was created while the backup ran: recovery will create it again at \
                {location} and write there, into the files of the original server if that is on \
                this host; a later backup avoids this"
        )
    })
}

/// Returns a note that the cluster has a later timeline that does not continue from this backup,
/// and the consequences.
pub(crate) fn fork_note(
    mode: Mode,
    options: &RecoveryOptions,
    cluster: &ClusterInfo,
    fork: &TimelineFork,
) -> String {
    let TimelineFork {
        timeline, newest, ..
    } = fork;
    let own = cluster.timeline;
    let reason = match fork.left {
        Some((next, at)) => {
            format!("timeline {next} forked at {at}, before this backup ended on timeline {own}")
        }
        None => format!(
            "timeline {timeline} does not descend from timeline {own}, on which this backup ended"
        ),
    };
    let and = match mode {
        Mode::None => String::new(),
        Mode::Point if options.timeline.is_none() => {
            format!("the server will stay on timeline {own}; ")
        }
        Mode::Point => {
            "the server will not reach it, and may not start (with --target-timeline current it \
                does); "
                .to_owned()
        }
        Mode::Standby => {
            format!("a standby made from it cannot follow a server on timeline {timeline}; ")
        }
    };
    format!("{reason}: {and}the newest backup that can reach timeline {timeline} is {newest}")
}

/// Returns a note if the server will archive, like the original server.
pub(crate) fn archiving_note(
    mode: Mode,
    options: &RecoveryOptions,
    known: &RecoveryFacts<'_>,
) -> Option<String> {
    let chosen = options
        .settings
        .iter()
        .rev()
        .find(|(name, _)| name == "archive_mode");
    let archives = chosen.map_or(known.archives, |(_, value)| turns_archiving_on(value));
    let note = match mode {
        Mode::None => SAME_TIMELINE_NOTE,
        Mode::Point => NEW_TIMELINE_NOTE,
        // A standby archives only with `always`, which the operator chose for it.
        Mode::Standby => return None,
    };
    archives.then(|| note.to_owned())
}

/// Returns whether a server with this value of `archive_mode` archives.
pub fn turns_archiving_on(value: &str) -> bool {
    !["off", "false", "no", "0"]
        .iter()
        .any(|word| value.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_note_warns_of_archiving_on_the_timeline_of_another_server() {
        let said = |mode, settings: &[(&str, &str)]| {
            let settings = settings
                .iter()
                .map(|(name, value)| ((*name).into(), (*value).into()))
                .collect();
            let options = RecoveryOptions {
                settings,
                ..RecoveryOptions::default()
            };
            archiving_note(
                mode,
                &options,
                &RecoveryFacts {
                    archives: true,
                    ..RecoveryFacts::default()
                },
            )
            .unwrap_or_default()
        };
        for (mode, words) in [
            (Mode::None, "on the timeline of the backup"),
            (Mode::Point, "a timeline of its own"),
        ] {
            assert!(
                said(mode, &[]).contains(words)
                    && said(mode, &[("archive_mode", "always")]).contains(words)
            );
            assert_eq!(said(mode, &[("archive_mode", "off")]), "");
        }
        assert_eq!(said(Mode::Standby, &[]), "");
        assert!(
            turns_archiving_on("always") && turns_archiving_on("ON") && !turns_archiving_on("Off")
        );
    }
}
