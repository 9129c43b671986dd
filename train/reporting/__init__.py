"""A run's page, report.html: what is read of its folder, the pictures, the page. Nothing here needs MindSpore, or writes."""
