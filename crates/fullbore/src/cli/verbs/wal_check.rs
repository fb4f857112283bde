//! `fullbore wal check`: of a repository, or of the way from a server to it.

use super::{
    backup_source::{is_url, params},
    wal::copy_name,
    wal_report::{WalCheck, counted_gaps},
};
use crate::cli::{
    metrics_file::{MetricsFile, RunNumbers, metrics_path},
    newest::WalNumbers,
    output::{aside, told},
    values::{any_bytes, destination, interval},
};
use clap::{Args, ValueHint};
use fullbore_engine::wal::{ServerCheck, ServerCheckReport};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    text,
};
use fullbore_storage::Storages;
use serde_json::{Value, json};
use std::{
    ffi::OsString,
    path::PathBuf,
    time::{Duration, Instant},
};

/// `fullbore wal check`.
#[derive(Debug, Args, Clone)]
pub(in crate::cli) struct WalCheckArgs {
    /// The repository, or the server as postgres://user@host/
    #[arg(value_name = "REPO|SERVER", value_hint = ValueHint::DirPath)]
    from: OsString,
    /// The repository to which the server archives
    #[arg(long, value_name = "REPO", value_hint = ValueHint::DirPath, value_parser = any_bytes(destination))]
    to: Option<OsString>,
    /// The name under which a copy of a cluster archives
    #[arg(long = "as", value_name = "NAME", value_parser = copy_name, requires = "to")]
    copy_name: Option<String>,
    /// The segment must arrive within this time
    ///
    /// With --no-switch, finished segments must not wait longer than this.
    #[arg(
        long,
        value_name = "TIME",
        value_parser = interval,
        default_value = "60s"
    )]
    patience: Duration,
    /// Compare the server with the repository without ending a segment
    #[arg(long, requires = "to")]
    no_switch: bool,
    /// Write the lag and the gaps to this file, for node_exporter
    #[arg(long, value_name = "FILE.prom", value_parser = metrics_path, value_hint = ValueHint::FilePath, requires = "to")]
    metrics: Option<PathBuf>,
    #[arg(from_global)]
    json: bool,
}

pub(super) fn run(args: WalCheckArgs, storages: &Storages, is_quiet: bool) -> Result<u8> {
    let server = args.from.to_str().filter(|text| is_url(text));
    match (server, args.to.clone()) {
        (Some(server), Some(to)) => {
            let check = ServerCheck {
                storages: storages.clone(),
                server: params(server)?,
                to,
                copy_name: args.copy_name.clone(),
                patience: args.patience,
                switches: !args.no_switch,
            };
            run_of_server(&check, &args, is_quiet)
        }
        (None, None) => {
            let repository =
                destination(args.from.clone()).map_err(|why| Error::new(ErrorKind::Usage, why))?;
            let check = WalCheck {
                storages: storages.clone(),
                repository,
                json: args.json,
            };
            told(|out| check.run(out))
        }
        _ => {
            let message = "a server and --to REPO belong together";
            let hint = "`fullbore wal check postgres:// --to REPO`, or `fullbore wal check REPO`";
            Err(Error::new(ErrorKind::Usage, message).hint(hint))
        }
    }
}

fn run_of_server(check: &ServerCheck, args: &WalCheckArgs, is_quiet: bool) -> Result<u8> {
    let metrics = args.metrics.as_deref();
    let metrics = metrics
        .map(|path| MetricsFile::new(path, None))
        .transpose()?;
    let begun = Instant::now();
    let report = check.run();
    if let Some(metrics) = metrics {
        metrics.write(&RunNumbers {
            seconds: begun.elapsed().as_secs_f64(),
            ..numbers(&report)
        });
    }
    let report = report?;
    if args.json {
        told(|out| text::json(out, &report_json(&report)).map(|()| 0))?;
    } else {
        for warning in &report.warnings {
            aside(format_args!("warning: {warning}"));
        }
        if report.failure.is_none() && !is_quiet {
            aside(line(&report, check));
        }
    }
    report.failure.map_or(Ok(0), Err)
}

fn numbers(report: &Result<ServerCheckReport>) -> RunNumbers {
    match report {
        Err(error) => RunNumbers {
            exit_code: error.exit_code(),
            ..RunNumbers::default()
        },
        Ok(report) => RunNumbers {
            exit_code: report.failure.as_ref().map_or(0, Error::exit_code),
            warnings: report.warnings.len() as u64,
            wal: vec![WalNumbers {
                system: report.system.clone(),
                archived_bytes: report.lag.archived.0,
                gaps: report.gaps,
                lag: Some((report.lag.bytes, report.lag.seconds)),
            }],
            ..RunNumbers::default()
        },
    }
}

fn line(report: &ServerCheckReport, check: &ServerCheck) -> String {
    let arrived = match &report.arrived {
        Some((segment, seconds)) => {
            format!("{segment} arrived after {}", text::size::seconds(*seconds))
        }
        None => match report.lag.newest {
            Some(newest) => format!("the newest segment is {newest}"),
            None => "there is no WAL of this server".to_owned(),
        },
    };
    format!(
        "{arrived} in {:?}; the server is {} ahead, {}",
        check.to,
        text::bytes(report.lag.bytes),
        counted_gaps(report.gaps)
    )
}

fn report_json(report: &ServerCheckReport) -> Value {
    json!({
        "type": "wal_check",
        "system": report.system,
        "version": report.version,
        "arrived_segment": report.arrived.as_ref().map(|(segment, _)| segment),
        "arrival_seconds": report.arrived.as_ref().map(|(_, seconds)| seconds),
        "newest_segment": report.lag.newest.map(|newest| newest.to_string()),
        "archived_lsn": report.lag.archived.to_string(),
        "lag_bytes": report.lag.bytes,
        "lag_segments": report.lag.segments,
        "lag_seconds": report.lag.seconds,
        "gap_count": report.gaps,
        "warnings": report.warnings,
        "passed": report.failure.is_none(),
    })
}
