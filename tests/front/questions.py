"""Five hundred tools, and sixty questions, each with its right tool."""

from __future__ import annotations

from leaseway.sdk import Tool

SERVICES = {
    "github": ("pull_request", "issue", "repository", "workflow_run"),
    "jira": ("ticket", "sprint", "board", "epic"),
    "slack": ("message", "channel", "reaction", "reminder"),
    "gmail": ("email", "draft", "label", "attachment"),
    "calendar": ("event", "invitation", "room_booking", "availability"),
    "drive": ("document", "folder", "spreadsheet", "permission"),
    "stripe": ("payment", "refund", "subscription", "invoice"),
    "salesforce": ("contact", "opportunity", "account", "lead"),
    "s3": ("bucket", "object", "lifecycle_rule", "access_log"),
    "postgres": ("table", "row", "index", "backup"),
    "kubernetes": ("pod", "deployment", "namespace", "secret"),
    "grafana": ("dashboard", "alert", "panel", "datasource"),
    "sentry": ("error_report", "release", "project", "environment"),
    "zendesk": ("support_case", "customer", "macro", "satisfaction_rating"),
    "shopify": ("product", "order", "discount_code", "shipment"),
    "twilio": ("sms", "phone_call", "phone_number", "voicemail"),
    "hubspot": ("campaign", "newsletter", "form_submission", "landing_page"),
    "notion": ("wiki_page", "database_entry", "comment", "template"),
    "figma": ("design_file", "component", "prototype", "style"),
    "linear": ("task", "cycle", "roadmap", "team"),
    "okta": ("user", "group", "login_session", "password_policy"),
    "dns": ("domain", "dns_record", "certificate", "zone"),
    "weather": ("forecast", "storm_warning", "air_quality_report", "tide_table"),
    "travel": ("flight", "hotel_stay", "rental_car", "train_ticket"),
    "hr": ("employee", "vacation_request", "payslip", "job_opening"),
}
ACTIONS = {
    "create": "Create a new {what} in {service}.",
    "get": "Read one {what} of {service} with all of its details.",
    "list": "List every {what} in {service}, newest first, with filters and pages.",
    "update": "Change an existing {what} in {service}: edit its fields.",
    "delete": "Remove a {what} from {service} for good.",
}


def tools() -> list[Tool]:
    result = []
    for service, things in SERVICES.items():
        for thing in things:
            what = thing.replace("_", " ")
            for action, description in ACTIONS.items():
                properties: dict[str, object] = {}
                if action in ("get", "update", "delete"):
                    text = {"type": "string", "description": f"Which {what}, by its id."}
                    properties[f"{thing}_id"] = text
                if action in ("create", "update"):
                    properties["fields"] = {
                        "type": "object",
                        "description": f"The members of the {what} and their values.",
                    }
                if action == "list":
                    properties["page_size"] = {"type": "integer", "description": "How many."}
                    properties["filter"] = {"type": "string", "description": f"Which {what}s."}
                result.append(
                    Tool(
                        name=f"{service}_{action}_{thing}",
                        server_id=service,
                        original_name=f"{action}_{thing}",
                        title="",
                        description=description.format(what=what, service=service),
                        input_schema={"type": "object", "properties": properties},
                        output_schema=None,
                        annotations={},
                        extra={},
                        shared=True,
                    )
                )
    return result


QUESTIONS = {
    "open a pull request on github": "github_create_pull_request",
    "show me the newest github issues": "github_list_issue",
    "which repositories do we have": "github_list_repository",
    "did the last workflow run succeed? read it": "github_get_workflow_run",
    "delete the repository that we archived": "github_delete_repository",
    "make a jira ticket for this bug": "jira_create_ticket",
    "change the epic's title in jira": "jira_update_epic",
    "list the sprints of this board": "jira_list_sprint",
    "send a message to the team on slack": "slack_create_message",
    "create a slack channel for the incident": "slack_create_channel",
    "set a reminder for tomorrow in slack": "slack_create_reminder",
    "remove my reaction": "slack_delete_reaction",
    "read the email from Anna": "gmail_get_email",
    "write a draft in gmail": "gmail_create_draft",
    "delete an email attachment": "gmail_delete_attachment",
    "which labels are there in my mail": "gmail_list_label",
    "put an event in my calendar": "calendar_create_event",
    "book a room: create a room booking": "calendar_create_room_booking",
    "cancel (remove) the invitation": "calendar_delete_invitation",
    "list availability of colleagues in the calendar": "calendar_list_availability",
    "create a spreadsheet": "drive_create_spreadsheet",
    "who has permission? list permissions of the drive": "drive_list_permission",
    "delete this folder": "drive_delete_folder",
    "edit the document": "drive_update_document",
    "refund the customer: create a refund": "stripe_create_refund",
    "list unpaid invoices": "stripe_list_invoice",
    "remove the subscription for good": "stripe_delete_subscription",
    "details of a payment": "stripe_get_payment",
    "add a new lead to salesforce": "salesforce_create_lead",
    "update the opportunity's amount": "salesforce_update_opportunity",
    "list all buckets": "s3_list_bucket",
    "create a lifecycle rule": "s3_create_lifecycle_rule",
    "delete an object from s3": "s3_delete_object",
    "add an index to the database table": "postgres_create_index",
    "make a backup of postgres": "postgres_create_backup",
    "delete the crashing pod": "kubernetes_delete_pod",
    "change the deployment in kubernetes": "kubernetes_update_deployment",
    "list namespaces": "kubernetes_list_namespace",
    "new grafana dashboard": "grafana_create_dashboard",
    "which alerts are there": "grafana_list_alert",
    "read the sentry error report": "sentry_get_error_report",
    "create a release": "sentry_create_release",
    "list open support cases": "zendesk_list_support_case",
    "satisfaction rating of this customer, read one": "zendesk_get_satisfaction_rating",
    "create a discount code for the shop": "shopify_create_discount_code",
    "where is the shipment? read its details": "shopify_get_shipment",
    "change the product's price": "shopify_update_product",
    "send an sms": "twilio_create_sms",
    "list voicemails": "twilio_list_voicemail",
    "create a newsletter": "hubspot_create_newsletter",
    "edit the landing page": "hubspot_update_landing_page",
    "new wiki page in notion": "notion_create_wiki_page",
    "delete a comment": "notion_delete_comment",
    "list design files": "figma_list_design_file",
    "create a user account in okta": "okta_create_user",
    "end (remove) a login session": "okta_delete_login_session",
    "add a dns record": "dns_create_dns_record",
    "what is the weather forecast": "weather_get_forecast",
    "list flights": "travel_list_flight",
    "request vacation: create a vacation request": "hr_create_vacation_request",
}
