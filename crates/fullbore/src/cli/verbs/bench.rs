//! `fullbore bench`.

use crate::cli::{
    options::PLAIN_EXIT_CODES,
    output::printed,
    values::threads,
    verbs::bench_figures::{Bench, BenchSubject, Figure},
};
use clap::{Args, ValueHint};
use fullbore_format::{
    error::Result,
    text::{self, size},
};
use fullbore_pipeline::stage::codec::Codec;
use fullbore_platform as platform;
use std::{num::NonZeroUsize, path::PathBuf};

/// `fullbore bench`.
#[derive(Debug, Args)]
#[command(after_help = PLAIN_EXIT_CODES)]
pub(in crate::cli) struct BenchArgs {
    /// What to measure
    #[arg(value_enum)]
    what: BenchSubject,
    /// Where read, write and pipeline work [default: here]
    ///
    /// read and pipeline read this file or directory. write writes into this directory. The default
    /// is the current directory.
    #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath)]
    path: Option<PathBuf>,
    /// The codec of compress and pipeline
    #[arg(long, value_name = "CODEC", default_value = "zstd:1")]
    compress: Codec,
    /// Threads [default: one for each processor]
    ///
    /// The default is the number of processors that this process may use.
    #[arg(long, short = 'j', value_name = "N", value_parser = threads)]
    workers: Option<NonZeroUsize>,
    /// Bytes to move
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size::parse)]
    size: u64,
    #[arg(from_global)]
    json: bool,
}

pub(in crate::cli) fn run(args: BenchArgs) -> Result<u8> {
    let path = args.path.unwrap_or_else(|| ".".into());
    let workers = args.workers.unwrap_or_else(platform::cores);
    let bench = Bench {
        what: args.what,
        path,
        codec: args.compress,
        workers,
        bytes: args.size,
    };
    let figures = bench.run()?;
    printed(|out| {
        for Figure { name, rate, remark } in &figures {
            let rate = *rate as u64;
            match args.json {
                true => text::json(
                    out,
                    &serde_json::json!({"type": "figure", "name": name, "bytes_per_second": rate, "remark": remark}),
                )?,
                false => text::line(
                    out,
                    &format!(
                        "{name:<20} {:>12}   {remark}",
                        fullbore_format::text::size::rate(rate, 1.0)
                    ),
                )?,
            }
        }
        Ok(0)
    })
}
