//! Stages as data. This is the only file that names every stage.

use fullbore_format::{digest::Algorithm, error::Result};
use fullbore_pipeline::{
    frame::Pool,
    known::KnownContent,
    stage::{
        Chain, Stage,
        codec::{Codec, Compress},
        digest::DigestStage,
        level::{CompressAuto, LevelDial},
        thin::Thin,
    },
};
use fullbore_postgres::page_stage::{PageCheck, PageChecks};
use std::sync::Arc;

/// A description of a stage; building the stage needs no other data.
#[derive(Debug, Clone)]
pub enum StageSpec {
    /// Computes digests.
    Digest {
        /// Digest algorithm.
        algorithm: Algorithm,
        /// Bytes of a block.
        block_bytes: u64,
        /// Whether large files are also cut in chunks by their content.
        chunks: bool,
        /// Whether CRC-32Cs of the blocks are needed.
        crc32c: bool,
    },
    /// Removes content that earlier backups have.
    Thin {
        /// Bytes of a block.
        block_bytes: u64,
        /// Content of other sources.
        shared: Option<Arc<dyn KnownContent>>,
    },
    /// Checks the checksums of PostgreSQL's pages.
    Pages(Arc<PageCheck>),
    /// Compresses.
    Compress {
        /// Codec and level.
        codec: Codec,
    },
    /// Compresses each frame at the level of this dial.
    CompressAuto(Arc<LevelDial>),
}

impl StageSpec {
    /// Builds the stage on this machine.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`](fullbore_format::error::ErrorKind::Usage) if the codec does not have this level.
    pub fn build(&self, pool: &Arc<Pool>) -> Result<Box<dyn Stage>> {
        Ok(match *self {
            Self::Digest {
                algorithm,
                block_bytes: block,
                chunks,
                crc32c,
            } => Box::new(DigestStage {
                algorithm,
                block,
                chunks,
                crc32c,
            }),
            Self::Thin {
                block_bytes: block,
                ref shared,
            } => Box::new(Thin::new(block, shared.clone())),
            Self::Pages(ref check) => Box::new(PageChecks(check.clone())),
            Self::Compress { codec } => Box::new(Compress::new(codec, pool.clone())?),
            Self::CompressAuto(ref dial) => Box::new(CompressAuto::new(dial.clone(), pool.clone())),
        })
    }
}

/// Builds all `stages` as one chain for one worker.
///
/// # Errors
/// As [`StageSpec::build`].
pub fn chain(stages: &[StageSpec], pool: &Arc<Pool>) -> Result<Chain> {
    Ok(Chain(
        stages
            .iter()
            .map(|stage| stage.build(pool))
            .collect::<Result<_>>()?,
    ))
}

/// Returns the same stages with the codec at its fastest level that still compresses.
pub fn at_fast_level(stages: &[StageSpec]) -> Vec<StageSpec> {
    stages.iter().map(fast_stage).collect()
}

fn fast_stage(stage: &StageSpec) -> StageSpec {
    match *stage {
        StageSpec::Compress { codec } => StageSpec::Compress {
            codec: codec.at_fast_level(),
        },
        StageSpec::CompressAuto(_) => StageSpec::Compress {
            codec: Codec::Auto.at_fast_level(),
        },
        ref other => other.clone(),
    }
}
