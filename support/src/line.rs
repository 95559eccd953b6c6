//! A straight line through points, by least squares.

/// Returns the slope of the line with the least sum of squared distances in `y`. The points are at
/// more than one `x`.
pub fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let mut sum_x = 0.0;
    let mut sum_y = 0.0;
    for (x, y) in points {
        sum_x += x;
        sum_y += y;
    }
    let mean_x = sum_x / count;
    let mean_y = sum_y / count;

    // From the means, not from zero: numbers of a billion would lose digits when squared.
    let mut covariance = 0.0;
    let mut variance = 0.0;
    for (x, y) in points {
        covariance += (x - mean_x) * (y - mean_y);
        variance += (x - mean_x).powi(2);
    }
    covariance / variance
}
