//! `fullbore restore --plan`.

use crate::cli::output::printed;
use fullbore_engine::restore::{
    Restore,
    estimate::{EstimateRequest, RestoreEstimate},
};
use fullbore_format::{
    error::Result,
    text::{self, size},
};
use serde::Serialize;
use std::path::PathBuf;

/// `fullbore restore --plan`.
pub(super) fn run(restore: Restore, target: Option<PathBuf>, json: bool) -> Result<u8> {
    let contract = EstimateRequest { restore, target }.run()?;
    printed(|out| {
        match json {
            true => text::json(out, &PlanLine::of(&contract))?,
            false => contract_lines(&contract)
                .iter()
                .try_for_each(|line| text::line(out, line))?,
        }
        Ok(0)
    })
}

/// The estimate as JSON.
#[derive(Serialize)]
struct PlanLine<'a> {
    r#type: &'static str,
    #[serde(flatten)]
    contract: &'a RestoreEstimate,
}

impl<'a> PlanLine<'a> {
    fn of(contract: &'a RestoreEstimate) -> Self {
        Self {
            r#type: "plan",
            contract,
        }
    }
}

fn contract_lines(contract: &RestoreEstimate) -> Vec<String> {
    let (fetched, frames) = (
        size::bytes(contract.fetched_bytes),
        size::counted(contract.frames, "frame"),
    );
    let segments = format!(
        "{} of {}",
        size::counted(contract.segments, "segment"),
        size::counted(contract.backups, "backup")
    );
    let [(_, read), (_, decode), (_, write)] = contract.seconds();
    let threads = size::counted(contract.workers as u64, "thread");
    let mut lines = vec![
        format!("backup        {}", contract.id),
        format!(
            "wanted        {}, {}",
            size::counted(contract.files, "file"),
            size::bytes(contract.bytes)
        ),
        format!("fetch         {fetched} in {frames}, from {segments}"),
        format!(
            "amplification {:.2} bytes fetched for each that is wanted, {:.2} decoded for each of content",
            contract.fetch_amplification(),
            contract.decode_amplification()
        ),
        speed_line("read", contract.read_rate, read),
        format!(
            "{} by {threads}",
            speed_line("decode", contract.decode_rate, decode)
        ),
    ];
    for (index, (backup, numbers)) in contract.volumes.iter().enumerate() {
        let numbers: Vec<_> = numbers.iter().map(u32::to_string).collect();
        let line = format!(
            "volumes       number {} of backup {backup}",
            numbers.join(", ")
        );
        lines.insert(2 + index, line);
    }
    if !contract.tapes.is_empty() {
        lines.insert(2, format!("tapes         {}", contract.tapes.join(", ")));
    }
    lines.push(match contract.write_rate {
        Some(rate) => speed_line("write", rate, write),
        None => "write         not measured".to_owned(),
    });
    let (least, most) = (
        size::seconds(contract.least_seconds),
        size::seconds(contract.most_seconds),
    );
    lines.push(match contract.is_measured() {
        true => format!(
            "expected      {least} to {most}, as these overlap; the limit is to {}",
            contract.limit
        ),
        false => "expected      not known: no medium was read".to_owned(),
    });
    lines.extend(
        contract
            .notes
            .iter()
            .map(|note| format!("note          {note}")),
    );
    lines
}

fn speed_line(name: &str, rate: f64, seconds: f64) -> String {
    match rate {
        0.0 => format!("{name:<13} not measured"),
        rate => format!(
            "{name:<13} {}, {}",
            size::rate(rate as u64, 1.0),
            size::seconds(seconds)
        ),
    }
}
