//! A restore drill: restores a backup of a cluster into a scratch directory, starts a server there, checks that it
//! recovers and answers, and removes everything.
//!
//! Guarantees: nothing of a server that runs is touched, and nothing is left, at the latest after the next drill.
//! Does not contain the server: it runs as an unprivileged user of this host, and code in the backup runs with it
//! where `settings.rs` cannot switch that off.

mod checks;
mod danger;
pub(crate) mod programs;
pub mod record;
mod scratch;
mod server;
mod settings;
pub(crate) mod user;

pub use scratch::end_drill;

use crate::restore::{
    Restore,
    cluster::{choose_backup::open_chosen, config::Configuration},
};
use checks::AmcheckResult;
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root::{ClusterInfo, Root},
    text::source_text,
};
use fullbore_platform::{host_name, metrics::meter::Meter, safe_file};
use fullbore_postgres::{
    restore::{
        conf,
        plan::AUTO_CONF,
        recovery::{RECOVERY_SIGNAL, TargetAction},
        recovery_target::RecoveryTarget,
    },
    socket_session::{QueryAnswer, SocketSession},
};
use fullbore_repository::{archive::Archive, open::is_repository};
use fullbore_storage::Storages;
use jiff::Timestamp;
use programs::ServerPrograms;
use record::DrillRecord;
use scratch::Scratch;
use server::DrillServer;
use settings::ClusterSettings;
use std::{
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    time::Instant,
};
use user::ServerUser;

/// Bytes of `postgresql.auto.conf` that are read.
const CONF_BYTES: u64 = 1 << 20;
/// The usual name of the first role.
const POSTGRES: &str = "postgres";

/// A drill.
#[derive(Debug)]
pub struct Drill {
    /// The backup and the target of the recovery. Where it is restored to is set by the drill.
    pub restore: Restore,
    /// The directory for the scratch directory.
    pub dir: PathBuf,
    /// The directory of the server's programs; `None` to look for them.
    pub bindir: Option<PathBuf>,
    /// The query, if any.
    pub query: Option<String>,
    /// The database of the query.
    pub database: String,
}

/// The outcome of a drill.
#[derive(Debug)]
pub struct DrillOutcome {
    /// The result, as it is stored.
    pub record: DrillRecord,
    /// The answer to the query.
    pub answer: QueryAnswer,
    /// Notes: what was left out, what could not be done.
    pub notes: Vec<String>,
    /// The failure, if the drill failed.
    pub failure: Option<Error>,
}

impl Drill {
    /// Runs the drill, and stores its result if the backup is in a repository.
    ///
    /// # Errors
    /// Only for what is wrong before the restore begins: the backup, the options, the host. A drill that fails later
    /// has an outcome with a failure.
    pub fn run(self, meter: &Meter) -> Result<DrillOutcome> {
        let archive = open_chosen(&self.restore, false)?;
        let root = archive.root.clone();
        let Some(cluster) = root.postgres.clone() else {
            let message = format!(
                "cannot drill {:?}: it is not a backup of a cluster",
                root.id
            );
            return Err(Error::new(ErrorKind::Unsupported, message)
                .hint("`fullbore verify --data` checks backups of files"));
        };
        danger::refuse_live_tablespaces(&cluster)?;
        let programs = ServerPrograms::find(cluster.major, self.bindir.as_deref())?;
        let scratch = Scratch::new(&self.dir)?;
        let user = ServerUser::of_host();
        if let Some(user) = &user {
            user.check_reach(&programs.path("postgres"), scratch.top())?;
        }
        let source = self.restore.from.clone();
        let mut outcome = self.outcome_of(&root, &cluster);
        let run = DrillRun {
            restore: self.restore_into(&scratch),
            drill: &self,
            scratch: &scratch,
            programs: &programs,
            cluster: &cluster,
            user,
        };
        outcome.failure = run
            .all(archive, meter, &mut outcome_parts(&mut outcome))
            .err();
        let removed = scratch.remove();
        // Options that do not fit the backup say nothing about the backup.
        if let Some(error) = outcome
            .failure
            .take_if(|error| error.kind == ErrorKind::Usage)
        {
            return Err(error);
        }
        outcome.failure = outcome.failure.or_else(|| removed.err());
        outcome.record.time = Timestamp::now().to_string();
        outcome.record.error = outcome.failure.as_ref().map(Error::line);
        outcome.store(&self.restore.storages, &source);
        Ok(outcome)
    }

    fn outcome_of(&self, root: &Root, cluster: &ClusterInfo) -> DrillOutcome {
        let record = DrillRecord {
            id: root.id.clone(),
            source: root.source.clone(),
            source_text: source_text(&root.source),
            system_identifier: cluster.system_identifier.clone(),
            host: host_name(),
            recovery_target: self.target(),
            query: self.query.clone(),
            backup_version: cluster.version.clone(),
            fullbore_version: env!("CARGO_PKG_VERSION").to_owned(),
            ..DrillRecord::default()
        };
        DrillOutcome {
            record,
            answer: QueryAnswer::default(),
            notes: Vec::new(),
            failure: None,
        }
    }

    /// The target, in words.
    fn target(&self) -> Option<String> {
        let recovery = &self.restore.postgres.recovery;
        let target = recovery.target.as_ref().map(|target| match target {
            RecoveryTarget::Time(text) => format!("time {text}"),
            RecoveryTarget::Lsn(text) => format!("LSN {text}"),
            RecoveryTarget::Name(text) => format!("restore point {text:?}"),
            RecoveryTarget::Xid(text) => format!("transaction {text}"),
            RecoveryTarget::Immediate => "immediate".to_owned(),
        });
        let timeline = recovery.timeline.as_ref();
        let timeline = timeline.map(|timeline| format!("timeline {timeline}"));
        let end = recovery
            .restore_command
            .as_ref()
            .map(|_| "end of the archive".to_owned());
        target.or(timeline).or(end)
    }

    fn restore_into(&self, scratch: &Scratch) -> Restore {
        let mut restore = self.restore.clone();
        restore.to = scratch.data();
        restore.postgres.tablespaces_under = Some(scratch.tablespaces());
        let recovery = &mut restore.postgres.recovery;
        // A server that pauses or shuts down answers nothing.
        recovery.action = recovery.target.as_ref().map(|_| TargetAction::Promote);
        restore
    }
}

impl DrillOutcome {
    /// A result that cannot be stored is a note: the drill itself has ended.
    fn store(&mut self, storages: &Storages, from: &OsStr) {
        if !is_repository(from) {
            return;
        }
        let stored = storages
            .repository_at(from)
            .and_then(|objects| self.record.store(&*objects));
        if let Err(error) = stored {
            let note = format!("the result is not in the repository: {}", error.line());
            self.notes.push(note);
        }
    }
}

/// The parts of an outcome that the steps fill.
struct OutcomeParts<'a> {
    record: &'a mut DrillRecord,
    answer: &'a mut QueryAnswer,
    notes: &'a mut Vec<String>,
}

fn outcome_parts(outcome: &mut DrillOutcome) -> OutcomeParts<'_> {
    OutcomeParts {
        record: &mut outcome.record,
        answer: &mut outcome.answer,
        notes: &mut outcome.notes,
    }
}

/// The steps of a drill in its scratch directory.
struct DrillRun<'a> {
    drill: &'a Drill,
    restore: Restore,
    scratch: &'a Scratch,
    programs: &'a ServerPrograms,
    cluster: &'a ClusterInfo,
    user: Option<ServerUser>,
}

impl DrillRun<'_> {
    fn all(&self, archive: Archive, meter: &Meter, out: &mut OutcomeParts<'_>) -> Result<()> {
        let conf = Configuration::read(&archive, &self.restore.to)?;
        let begun = Instant::now();
        let owners = self.archive_owner(&archive);
        let restored = self.restore.run_archive(archive, meter)?;
        out.record.restore_seconds = begun.elapsed().as_secs_f64();
        if !self.scratch.data().join("global/pg_control").exists() {
            let error = Error::corrupt("the restored cluster cannot start: it has no pg_control");
            return Err(restored.notes.into_iter().fold(error, Error::detail));
        }
        let user = match &self.user {
            Some(user) => user.clone(),
            None => ServerUser::of_files(&self.scratch.data())?,
        };
        self.prepare(&user, &conf, out.notes)?;
        let begun = Instant::now();
        let mut server = DrillServer::start(self.scratch, self.programs, &user)?;
        server.wait_until_open()?;
        let roles = [POSTGRES, &owners, &user.name];
        let (mut session, role) = self.connect(&roles)?;
        out.record.server_version = session.value("SHOW server_version")?;
        out.record.replay_seconds = begun.elapsed().as_secs_f64();
        self.check(&server, &user, &mut session, role, out)?;
        drop(session);
        server.stop();
        Ok(())
    }

    /// The name of the owner of the data directory: the first role often has it.
    fn archive_owner(&self, archive: &Archive) -> String {
        let found = archive.find(b"PG_VERSION").unwrap_or_default();
        let owner = found.first().map(|item| item.entry.owner.user.to_string());
        owner
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| POSTGRES.to_owned())
    }

    /// Connects to the database of the query. The server has just opened.
    fn connect<'b>(&self, roles: &[&'b str]) -> Result<(SocketSession, &'b str)> {
        let socket = self.scratch.socket();
        SocketSession::open(&socket, roles, &self.drill.database, self.cluster.major)
    }

    /// Writes the files that the server reads beside those of the backup.
    fn prepare(
        &self,
        user: &ServerUser,
        conf: &Configuration,
        notes: &mut Vec<String>,
    ) -> Result<()> {
        let [prepared, libraries, command] = settings::taken();
        let wanted = conf.value(libraries).unwrap_or_default();
        let (libraries, left_out) = self.programs.split_libraries(&wanted);
        if !left_out.is_empty() {
            notes.push(format!(
                "libraries that are left out: {}",
                left_out.join(", ")
            ));
        }
        let cluster = ClusterSettings {
            major: self.cluster.major,
            prepared: conf.value(prepared),
            restore_command: conf.value(command),
            libraries: &libraries,
        };
        let recovery = self.take_recovery()?;
        let text = settings::configuration(self.scratch, &cluster, &recovery)?;
        self.write("conf", &text)?;
        self.write("hba", "local all all trust\n")?;
        self.write("ident", "")?;
        user.make_dir(&self.scratch.socket())?;
        // Last, for all files: the server refuses a data directory of another user.
        user.own(&self.scratch.data())?;
        user.own(&self.scratch.tablespaces())
    }

    /// Returns the settings of `postgresql.auto.conf` if the restore wrote a recovery, and replaces the file by an
    /// empty one: a server reads it whatever its configuration is.
    fn take_recovery(&self) -> Result<Vec<(String, String)>> {
        let data = self.scratch.data();
        let path = data.join(OsStr::from_bytes(AUTO_CONF));
        let failed = |e| Error::io(format!("could not replace {path:?}"), e);
        let has_recovery = data.join(OsStr::from_bytes(RECOVERY_SIGNAL)).exists();
        let recovery = if has_recovery {
            conf::settings(&safe_file::read(&path, CONF_BYTES).map_err(failed)?)
        } else {
            Vec::new()
        };
        // The file may be a link of the backup to a file of this host.
        if path.symlink_metadata().is_ok() {
            fs::remove_file(&path).map_err(failed)?;
        }
        fs::File::create_new(&path).map_err(failed)?;
        Ok(recovery)
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.scratch.file(name);
        let failed = |e| Error::io(format!("could not write {path:?}"), e);
        fs::write(&path, text).map_err(failed)?;
        make_readable(&path).map_err(failed)
    }

    fn check(
        &self,
        server: &DrillServer,
        user: &ServerUser,
        session: &mut SocketSession,
        role: &str,
        out: &mut OutcomeParts<'_>,
    ) -> Result<()> {
        if self.restore.postgres.recovery.target.is_some() {
            let target = out.record.recovery_target.clone().unwrap_or_default();
            out.record.reached = Some(checks::reached_target(server, &target)?);
        }
        if let Some(query) = &self.drill.query {
            let begun = Instant::now();
            *out.answer = session.query(query)?;
            out.record.query_seconds = begun.elapsed().as_secs_f64();
            out.record.row_count = out.answer.count;
        }
        let major = self.cluster.major;
        match checks::amcheck(self.scratch, self.programs, user, session, role, major)? {
            AmcheckResult::Passed => out.record.amcheck = true,
            AmcheckResult::NotRun(why) => out.notes.push(format!("pg_amcheck did not run: {why}")),
        }
        Ok(())
    }
}

/// The server of a drill by root is another user. There is no secret in these files.
fn make_readable(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o644))
}
