//! `fullbore serve`.

use crate::{
    command::serve::{AllowedLocation, Serve},
    error::Result,
};
use clap::Args;

/// `fullbore serve`.
#[derive(Debug, Args)]
pub(in crate::cli) struct ServeArgs {
    /// Talk over standard input and output, with the fullbore that started ssh
    #[arg(long, required = true)]
    stdio: bool,
    /// Offer one location only, to read:LOCATION it, to append:LOCATION backups to it, or to write:LOCATION it
    #[arg(long, value_name = "WHAT:LOCATION", value_parser = |word: &str| AllowedLocation::parse(word).map_err(|error| error.what))]
    allow: Option<AllowedLocation>,
}

pub(in crate::cli) fn run(args: ServeArgs) -> Result<u8> {
    let serve = Serve {
        allowed: args.allow,
        ..Serve::default()
    };
    serve.run().map(|()| 0)
}
