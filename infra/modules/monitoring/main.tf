# What monitoring/ in the repository holds for Cloud Monitoring: each dashboard and each alert policy is a file of its API.

variable "project" {
  type = string
}

variable "folder" {
  type = string
}

variable "channels" {
  type = list(string)
}

locals {
  policies = { for file in fileset(var.folder, "alerts/*.json") : trimsuffix(basename(file), ".json") => jsondecode(file("${var.folder}/${file}")) }
}

resource "google_monitoring_dashboard" "each" {
  for_each       = fileset(var.folder, "*.json")
  project        = var.project
  dashboard_json = file("${var.folder}/${each.key}")
}

resource "google_monitoring_alert_policy" "each" {
  for_each              = local.policies
  project               = var.project
  display_name          = each.value.displayName
  combiner              = each.value.combiner
  severity              = each.value.severity
  user_labels           = each.value.userLabels
  notification_channels = var.channels

  dynamic "conditions" {
    for_each = each.value.conditions
    content {
      display_name = conditions.value.displayName
      condition_prometheus_query_language {
        query                     = conditions.value.conditionPrometheusQueryLanguage.query
        duration                  = conditions.value.conditionPrometheusQueryLanguage.duration
        evaluation_interval       = conditions.value.conditionPrometheusQueryLanguage.evaluationInterval
        rule_group                = conditions.value.conditionPrometheusQueryLanguage.ruleGroup
        alert_rule                = conditions.value.conditionPrometheusQueryLanguage.alertRule
        disable_metric_validation = conditions.value.conditionPrometheusQueryLanguage.disableMetricValidation
      }
    }
  }

  documentation {
    content   = each.value.documentation.content
    mime_type = each.value.documentation.mimeType
    subject   = each.value.documentation.subject
  }

  alert_strategy {
    auto_close = each.value.alertStrategy.autoClose
  }
}

output "made" {
  description = "All resources, for the tests of the root."
  value = {
    monitoring_dashboard_each    = google_monitoring_dashboard.each
    monitoring_alert_policy_each = google_monitoring_alert_policy.each
  }
}
