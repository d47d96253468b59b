//! Samples and what is said of them.

use std::collections::BTreeMap;
use std::time::Duration;

use overwinter_client::Operation;

/// Durations of one thing, in the order in which they were taken.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    pub fn add(&mut self, took: Duration) {
        self.add_ms(took.as_secs_f64() * 1e3);
    }

    pub fn add_ms(&mut self, took: f64) {
        self.0.push(took);
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The smallest sample that at least `share` of all do not exceed, in milliseconds; of no samples
    /// not a number.
    #[must_use]
    pub fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (share * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.max(1) - 1).copied().unwrap_or(f64::NAN)
    }

    #[must_use]
    pub fn p50(&self) -> f64 {
        self.quantile(0.5)
    }

    #[must_use]
    pub fn p99(&self) -> f64 {
        self.quantile(0.99)
    }
}

/// The steps of operations of one kind: where the time goes.
#[derive(Clone, Debug, Default)]
pub struct Steps(BTreeMap<String, Samples>);

impl Steps {
    pub fn add(&mut self, operation: Option<&Operation>) {
        for (step, took) in operation.into_iter().flat_map(Operation::steps) {
            self.0.entry(step.to_owned()).or_default().add(took);
        }
    }

    /// Medians in milliseconds, the longest first.
    #[must_use]
    pub fn medians(&self) -> String {
        let mut medians: Vec<_> = self.0.iter().map(|(step, all)| (all.p50(), step)).collect();
        medians.sort_by(|a, b| b.0.total_cmp(&a.0));
        let words: Vec<_> = medians
            .iter()
            .map(|(took, step)| format!("{step} {took:.2}"))
            .collect();
        words.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_and_the_tail_are_samples_that_were_taken() {
        let mut samples = Samples::default();
        (1..=200).rev().for_each(|ms| samples.add_ms(f64::from(ms)));
        assert_eq!((samples.p50(), samples.p99()), (100.0, 198.0));
        let mut one = Samples::default();
        one.add_ms(7.0);
        assert_eq!((one.p50(), one.p99()), (7.0, 7.0));
    }
}
