//! Sums of sizes, which stay at the largest number instead of beginning anew at 0.
//!
//! Three sparse files can be larger together than a `u64` counts, and a root that somebody forged says any number.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The sum of all `sizes`, or `u64::MAX` if it is more.
pub fn sum(sizes: impl IntoIterator<Item = u64>) -> u64 {
    sizes.into_iter().fold(0, u64::saturating_add)
}

/// Add `size` to `sum`.
pub fn add(sum: &mut u64, size: u64) {
    *sum = sum.saturating_add(size);
}

/// As [`add`], where several threads add.
pub fn add_shared(sum: &AtomicU64, size: u64) {
    let _ = sum.fetch_update(Relaxed, Relaxed, |sum| Some(sum.saturating_add(size))); // it is never refused
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_that_is_too_large_is_the_largest_number() {
        assert_eq!(sum([]), 0);
        assert_eq!(sum([1, 2, 3]), 6);
        assert_eq!(sum([u64::MAX, 1, 2]), u64::MAX);
        let mut one = 5;
        add(&mut one, u64::MAX);
        assert_eq!(one, u64::MAX);
        let shared = AtomicU64::new(u64::MAX - 1);
        add_shared(&shared, 1);
        add_shared(&shared, 1);
        assert_eq!(shared.into_inner(), u64::MAX);
    }
}
