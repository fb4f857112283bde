//! The checks of a drill: the target was reached, a query is answered, pg_amcheck finds nothing.

use super::{
    programs::ServerPrograms,
    scratch::Scratch,
    server::{DrillServer, tail},
    user::ServerUser,
};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_postgres::socket_session::{SocketSession, quiet_options};
use std::{fs::File, process::Stdio};

/// Exit code of pg_amcheck if it found damage.
const FOUND: i32 = 2;
/// Lines of pg_amcheck that an error repeats.
const LINES: usize = 5;
/// The line of the log that says where recovery ended because of a target.
const STOPPING: &str = "recovery stopping ";

/// The result of pg_amcheck.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AmcheckResult {
    /// It found nothing.
    Passed,
    /// It did not run, for this reason.
    NotRun(String),
}

/// Returns where recovery stopped, in the server's words.
///
/// # Errors
/// [`ErrorKind::System`] if the log does not say that the server stopped at a target.
pub(super) fn reached_target(server: &DrillServer, target: &str) -> Result<String> {
    let lines = server.log_lines();
    let found = lines
        .iter()
        .find_map(|line| line.split_once(STOPPING).map(|(_, place)| place.to_owned()));
    found.ok_or_else(|| {
        Error::new(
            ErrorKind::System,
            format!("the target was not reached: {target}"),
        )
        .because("the server accepts queries, and its log does not say that it stopped there")
    })
}

/// Runs pg_amcheck over all databases, if the version has it and the extension is installed.
///
/// # Errors
/// [`ErrorKind::Corrupt`] for damage; the system's.
pub(super) fn amcheck(
    scratch: &Scratch,
    programs: &ServerPrograms,
    user: &ServerUser,
    session: &mut SocketSession,
    role: &str,
    major: u32,
) -> Result<AmcheckResult> {
    let program = programs.path("pg_amcheck");
    if !program.is_file() {
        return Ok(AmcheckResult::NotRun("it is not installed".into()));
    }
    let sql = "SELECT count(*)::text FROM pg_available_extensions WHERE name = 'amcheck'";
    if session.value(sql)? == "0" {
        let why = "the extension amcheck is not installed";
        return Ok(AmcheckResult::NotRun(why.into()));
    }
    let failed = |e| Error::io(format!("could not run {program:?}"), e);
    let log = scratch.file("amcheck");
    let out = File::create_new(&log).map_err(failed)?;
    let status = user
        .command(&program)
        .args(["--all", "--install-missing", "--no-password", "--port=5432"])
        .arg("--username")
        .arg(role)
        .arg("--host")
        .arg(scratch.socket())
        .env("PGOPTIONS", quiet_options(major))
        // The user of the server may have no right to the current directory.
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(out.try_clone().map_err(failed)?)
        .stderr(out)
        .status()
        .map_err(failed)?;
    let text = tail(&log).map_err(failed)?;
    match status.code() {
        Some(0) => Ok(AmcheckResult::Passed),
        Some(FOUND) => Err(found(&text)),
        _ => Ok(AmcheckResult::NotRun(format!(
            "it failed: {}",
            text.lines().next().unwrap_or_default()
        ))),
    }
}

fn found(text: &str) -> Error {
    let error = Error::corrupt("pg_amcheck found damage in the restored cluster");
    let lines = text.lines().take(LINES);
    lines.fold(error, |error, line| error.detail(line.to_owned()))
}
