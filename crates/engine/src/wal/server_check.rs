//! Tests the way of a server's WAL into a repository: settings, rights, a segment that is ended, and its arrival.
//!
//! The result has the lag even if the test fails: a failing archive is when the lag matters.

use super::{
    push::system_name,
    system::{SystemWal, has_segment},
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    wal::SegmentName,
};
use fullbore_postgres::{
    conninfo::Params,
    lsn::Lsn,
    session::{ArchivedWal, ArchivingFacts, Session},
};
use fullbore_repository::{
    open::{list_backups, read_repository},
    wal::{WalArchive, WalNeeds},
};
use fullbore_storage::{Objects, Storages};
use std::{
    ffi::OsString,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// Pause between two looks for the segment.
const LOOK: Duration = Duration::from_millis(200);
/// The command that archives.
const COMMAND: &str = "archive_command = 'fullbore wal push %p --to REPO'";

/// Tests the way from a server to a repository.
#[derive(Debug, Clone)]
pub struct ServerCheck {
    /// How storages are reached.
    pub storages: Storages,
    /// The server.
    pub server: Box<Params>,
    /// The repository.
    pub to: OsString,
    /// The name of a copy of a cluster, which archives apart from its origin.
    pub copy_name: Option<String>,
    /// A segment must arrive within this time.
    pub patience: Duration,
    /// Whether to end a segment, so that one must arrive.
    pub switches: bool,
}

/// The result of a test.
#[derive(Debug)]
pub struct ServerCheckReport {
    /// The server's version, in its own words.
    pub version: String,
    /// The system, and behind a dot the name of a copy.
    pub system: String,
    /// The segment that was ended for the test, and the seconds until it arrived.
    pub arrived: Option<(String, f64)>,
    /// How far the repository is behind the server.
    pub lag: WalLag,
    /// Gaps in the archive of this system.
    pub gaps: u64,
    /// Faults that do not end the way.
    pub warnings: Vec<String>,
    /// Why the WAL does not arrive.
    pub failure: Option<Error>,
}

/// How far a repository is behind a server.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct WalLag {
    /// The newest segment in the repository.
    pub newest: Option<SegmentName>,
    /// The location at which the newest segment ends.
    pub archived: Lsn,
    /// Bytes of WAL behind it.
    pub bytes: u64,
    /// Finished segments that are not in the repository.
    pub segments: u64,
    /// Seconds since the oldest of them was finished; 0 if there is none.
    pub seconds: f64,
}

impl ServerCheck {
    /// Runs the test. A server that does not archive is a failure in the report.
    ///
    /// # Errors
    /// If the server or the repository cannot be reached.
    pub fn run(&self) -> Result<ServerCheckReport> {
        let objects = self.storages.repository_at(&self.to)?;
        read_repository(&*objects)?;
        let mut session = Session::connect(&self.server)?;
        let facts = session.archiving_facts()?;
        let identifier = facts.system_identifier;
        let system = system_name(identifier, self.copy_name.as_deref());
        let mut warnings = setting_warnings(&facts, session.standby());
        let tested = match setting_fault(&facts, session.standby()) {
            Some(fault) => Err(fault),
            None => self.test(&objects, &mut session, &facts, &system),
        };
        let archive = WalArchive::new(objects.clone(), &system);
        let wal = SystemWal::load(archive, Some(facts.segment_bytes))?;
        let lag = lag(&mut session, &wal)?;
        warnings.extend(backup_warning(&objects, identifier)?);
        let (arrived, failure) = match tested {
            Ok(arrived) => (arrived, self.lag_fault(&lag)),
            Err(error) => (None, Some(error)),
        };
        Ok(ServerCheckReport {
            version: facts.version,
            system,
            arrived,
            lag,
            gaps: wal.tree.gaps().len() as u64,
            warnings,
            failure,
        })
    }

    /// Ends a segment and waits for it, if that is wanted and this is a primary.
    fn test(
        &self,
        objects: &Arc<dyn Objects>,
        session: &mut Session,
        facts: &ArchivingFacts,
        system: &str,
    ) -> Result<Option<(String, f64)>> {
        if !self.switches || session.standby() {
            return Ok(None);
        }
        if !facts.may_switch {
            return Err(no_right(&facts.role));
        }
        let name = session.switch_wal()?;
        let segment = SegmentName::parse(&name)
            .ok_or_else(|| Error::new(ErrorKind::Unsupported, format!("cannot read {name:?}")))?;
        let begun = Instant::now();
        while !has_segment(objects, system, segment)? {
            let archived = session.archived_wal(&name)?;
            // A failure or a success that the server has noted may be older than the last look into the repository.
            let is_over = begun.elapsed() >= self.patience;
            let is_elsewhere = archived.done && begun.elapsed() > LOOK * 10;
            if is_elsewhere && !has_segment(objects, system, segment)? {
                return Err(elsewhere(facts, &name));
            }
            if is_over {
                return Err(self.absent(&name, &archived));
            }
            thread::sleep(LOOK);
        }
        Ok(Some((name, begun.elapsed().as_secs_f64())))
    }

    fn absent(&self, segment: &str, archived: &ArchivedWal) -> Error {
        let message = format!(
            "could not archive {segment}: it did not arrive within {} s",
            self.patience.as_secs()
        );
        let last = archived
            .last
            .clone()
            .unwrap_or_else(|| "nothing".to_owned());
        let error = Error::new(ErrorKind::System, message);
        match &archived.failing {
            Some(failing) => error
                .because(format!("the server fails to archive {failing}; the last file it archived is {last}"))
                .hint("the server's log says why; as its user, run archive_command by hand in the data directory"),
            None => error
                .because(format!("the archive lags: the last file that the server archived is {last}"))
                .hint("repeat it with a longer --patience; `fullbore wal serve` pushes a backlog faster"),
        }
    }

    /// Without a segment that was ended for the test, the age of what waits decides.
    fn lag_fault(&self, lag: &WalLag) -> Option<Error> {
        let is_late = lag.seconds > self.patience.as_secs_f64();
        if !is_late {
            return None;
        }
        let message = format!(
            "could not find all finished WAL in the repository: {} segments wait, the oldest for {:.0} s",
            lag.segments, lag.seconds
        );
        let hint = "the server's log says why archive_command fails, if it does";
        Some(Error::new(ErrorKind::System, message).hint(hint))
    }
}

/// Why the server archives nothing, by its settings.
fn setting_fault(facts: &ArchivingFacts, is_standby: bool) -> Option<Error> {
    if facts.waits_for_restart {
        let why = "archive_mode or wal_level was changed, and counts after a restart".to_owned();
        return Some(cannot_archive(why, "restart the server".to_owned()));
    }
    if facts.wal_level == "minimal" {
        let hint = "set wal_level = replica, and restart the server";
        let why = "wal_level is minimal".to_owned();
        return Some(cannot_archive(why, hint.to_owned()));
    }
    let is_on = facts.archive_mode == "always" || facts.archive_mode == "on" && !is_standby;
    if !is_on {
        let mode = &facts.archive_mode;
        let (place, wanted) = match is_standby {
            true => (" on a standby", "always"),
            false => ("", "on"),
        };
        let hint = format!("set archive_mode = {wanted} and {COMMAND}, and restart the server");
        return Some(cannot_archive(
            format!("archive_mode is {mode}{place}"),
            hint,
        ));
    }
    let is_empty = facts.archive_command.is_empty() && facts.archive_library.is_empty();
    if is_empty {
        let hint = format!("set {COMMAND}, and reload the configuration");
        return Some(cannot_archive("archive_command is empty".to_owned(), hint));
    }
    None
}

fn cannot_archive(why: String, hint: String) -> Error {
    let message = "cannot archive the WAL of this server";
    Error::new(ErrorKind::Unsupported, message)
        .because(why)
        .hint(hint)
}

fn setting_warnings(facts: &ArchivingFacts, is_standby: bool) -> Vec<String> {
    let mut warnings = Vec::new();
    if !facts.full_page_writes {
        warnings.push("full_page_writes is off: a recovery may end at a torn page".to_owned());
    }
    if facts.archive_timeout == 0 && !is_standby {
        let mib = facts.segment_bytes >> 20;
        warnings.push(format!(
            "archive_timeout is 0: on a quiet server changes are archived when {mib} MiB of WAL are full; set archive_timeout = 60"
        ));
    }
    if facts.standbys > 0 && facts.receivers == 0 && facts.archive_mode != "always" {
        warnings.push(format!(
            "{} standby servers stream from this one, and with archive_mode = {} they archive nothing: after a failover the last \
             WAL may be missing; set archive_mode = always on all of them, or run `fullbore wal receive`",
            facts.standbys, facts.archive_mode
        ));
    }
    warnings
}

fn no_right(role: &str) -> Error {
    let message = "cannot test the archive: the role may not end a WAL segment";
    Error::new(ErrorKind::Permission, message).hint(format!(
        "`GRANT EXECUTE ON FUNCTION pg_catalog.pg_switch_wal() TO {role}`, or --no-switch, which ends none"
    ))
}

fn elsewhere(facts: &ArchivingFacts, segment: &str) -> Error {
    let message = format!(
        "could not find {segment} in the repository: the server says that it has archived it"
    );
    let setting = match facts.archive_library.is_empty() {
        true => format!("archive_command is {:?}", facts.archive_command),
        false => format!("archive_library is {:?}", facts.archive_library),
    };
    Error::new(ErrorKind::NotFound, message)
        .because(format!("it archives to another place: {setting}"))
        .hint(format!(
            "set {COMMAND}, or name the repository that the server archives to"
        ))
}

/// A repository without a backup of the system: WAL alone restores nothing. Without a key that reads, it is not known.
fn backup_warning(objects: &Arc<dyn Objects>, system: u64) -> Result<Option<String>> {
    let roots = match list_backups(objects) {
        Err(error) if error.kind == ErrorKind::Permission => return Ok(None),
        roots => roots?,
    };
    let system = system.to_string();
    let mut count = 0;
    for (_, root) in roots {
        match root {
            Ok(root) if WalNeeds::of(&root).is_some_and(|needs| needs.system == system) => {
                return Ok(None);
            }
            Ok(_) => count += 1,
            Err(error) if error.kind == ErrorKind::Permission => return Ok(None),
            Err(_) => {}
        }
    }
    Ok(Some(format!(
        "none of the {count} backups in this repository is of this cluster, and WAL alone restores nothing: \
         `fullbore backup postgres:// --to REPO`"
    )))
}

/// Compares the server's position with the newest segment on its timeline, or on the timelines before.
fn lag(session: &mut Session, wal: &SystemWal) -> Result<WalLag> {
    let (timeline, position) = session.wal_position()?;
    let timelines = wal.tree.timelines().into_iter().rev();
    let mut newest = timelines
        .filter(|other| *other <= timeline)
        .filter_map(|other| wal.tree.last_of(other));
    let Some(newest) = newest.next() else {
        return Ok(WalLag {
            bytes: position.0,
            segments: position.0 / wal.segment_bytes.max(1),
            ..WalLag::default()
        });
    };
    let next = newest.next(wal.segment_bytes).on(timeline);
    let archived = Lsn(next.start(wal.segment_bytes));
    let bytes = position.0.saturating_sub(archived.0);
    let segments = bytes / wal.segment_bytes;
    let seconds = match segments {
        0 => Some(0.0),
        _ => session.segment_age(&next.to_string())?,
    };
    Ok(WalLag {
        newest: Some(newest),
        archived,
        bytes,
        segments,
        seconds: seconds.unwrap_or_default().max(0.0),
    })
}
